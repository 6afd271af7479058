// Tutorial 003, method 8: Accelerator. The loop of one process, prepared for several.
//   lockstep run --nproc-per-node 2 accelerator --data ... --vocab ...
#include <lockstep/train/accelerator.h>
#include <lockstep/train/metrics.h>

#include "text_training.h"

namespace {

// Every rank evaluates its batches; gather_for_metrics() puts every text together once.
template <typename Model, typename Loader>
lockstep::Evaluation evaluate(lockstep::Accelerator& accelerator, Model& model, Loader& loader) {
  const at::NoGradGuard no_grad;
  model.eval();
  std::vector<at::Tensor> logits, labels;
  for (auto& batch : loader) {
    logits.push_back(accelerator.gather_for_metrics(text::forward(model, batch)));
    labels.push_back(accelerator.gather_for_metrics(batch.labels));
  }
  model.train();
  lockstep::Evaluation result = lockstep::count_classes({at::cat(logits), at::cat(labels)});
  result.loss = text::cross_entropy(at::cat(logits), at::cat(labels)).template item<double>();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  return text::run_program("accelerator", argc, argv, [](const text::Settings& settings) {
    const bool half = settings.amp == "float16", bf16 = settings.amp == "bfloat16";
    lockstep::Accelerator accelerator(text::join_job(), {.mixed_precision = half   ? "fp16"
                                                                            : bf16 ? "bf16"
                                                                                   : "no"});
    lockstep::Communicator& comm = accelerator.comm();
    const text::Texts texts = text::load_texts(settings, comm.size());
    lockstep::data::DistributedSampler shuffled(texts.train.size(), 1, 0, {.seed = settings.seed});
    lockstep::data::SequentialSampler in_order(texts.dev.size());
    lockstep::data::Loader train_loader(texts.train, shuffled, {.batch_size = settings.batch_size});
    lockstep::data::Loader dev_loader(texts.dev, in_order, {.batch_size = settings.batch_size});
    lockstep::BertClassifier bert = text::make_model(settings, texts, comm);
    lockstep::optim::FusedAdamW adamw(text::parameter_groups(bert, settings), settings.adamw());

    auto [model, optimizer, loader, dev] =
        accelerator.prepare(bert, adamw, train_loader, dev_loader);
    text::Run run(settings, texts, comm, loader.batches());
    if (half || bf16) run.result().dtype = settings.amp;
    run.starts();
    while (!run.finished()) {
      for (auto& batch : loader) {
        run.ends(text::kData);
        optimizer.zero_grad();
        const auto loss = text::cross_entropy(text::forward(model, batch), batch.labels);
        run.ends(text::kForward);
        accelerator.backward(loss);
        run.ends(text::kBackward);
        lockstep::optim::set_learning_rate(adamw, run.rate());
        optimizer.step();
        run.ends(text::kOptimizer);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates()) run.dev(evaluate(accelerator, model, dev), bert);
        if (run.finished()) break;
      }
    }
    run.finish(bert);
  });
}
