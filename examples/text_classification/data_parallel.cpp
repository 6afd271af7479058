// Tutorial 003, method 2: DataParallel. One process; each batch is split over replicas of the
// model, so there are as many steps as with one device.
#include <lockstep/parallel/data_parallel/data_parallel.h>

#include "text_training.h"

int main(int argc, char** argv) {
  return text::run_program("data_parallel", argc, argv, [](const text::Settings& settings) {
    if (settings.padding == "packed")
      throw lockstep::InvalidArgument(
          "DataParallel cuts batches along their first dimension, which packed ones do not have; "
          "give --padding longest");
    lockstep::Communicator alone = lockstep::init({.backend = "local"});
    const text::Texts texts = text::load_texts(settings, 1);
    lockstep::data::DistributedSampler sampler(texts.train.size(), alone, {.seed = settings.seed});
    lockstep::data::Loader loader(texts.train, sampler,
                                  {.batch_size = settings.batch_size, .device = alone.device()});

    lockstep::BertClassifier bert = text::make_model(settings, texts, alone);
    lockstep::optim::FusedAdamW optimizer(text::parameter_groups(bert, settings), settings.adamw());
    lockstep::DataParallel model(
        bert, lockstep::DataParallelOptions{.replicas = static_cast<int>(settings.nproc)}, [&bert] {
          return lockstep::BertClassifier(bert->config(), lockstep::InitialParameters::kNone);
        });
    text::Run run(settings, texts, alone, loader.batches());
    run.result().nproc = settings.nproc;
    run.starts();
    for (int epoch = 0; !run.finished(); ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : loader) {
        run.ends(text::kData);
        optimizer.zero_grad();
        const auto logits = model(batch.input_ids, batch.attention_mask, batch.token_type_ids);
        const auto loss = text::cross_entropy(logits, batch.labels);
        run.ends(text::kForward);
        loss.backward();
        run.ends(text::kBackward);
        lockstep::optim::set_learning_rate(optimizer, run.rate());
        optimizer.step();
        run.ends(text::kOptimizer);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates()) run.dev(text::evaluate(bert, texts, alone), bert);
        if (run.finished()) break;
      }
    }
    run.finish(bert);
  });
}
