// Tutorial 003, method 5: mixed precision. Forward and loss compute in 16 bits, backward follows;
// the scaler, which float16 needs, passes everything through in bfloat16.
#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/parallel/ddp/ddp.h>

#include "text_training.h"

int main(int argc, char** argv) {
  return text::run_program("distributed_amp", argc, argv, [](const text::Settings& settings) {
    const bool half = settings.amp == "float16";
    lockstep::Communicator comm = text::join_job();
    const text::Texts texts = text::load_texts(settings, comm.size());
    lockstep::data::DistributedSampler sampler(texts.train.size(), comm, {.seed = settings.seed});
    lockstep::data::Loader loader(texts.train, sampler,
                                  {.batch_size = settings.batch_size, .device = comm.device()});

    lockstep::DistributedDataParallel model(text::make_model(settings, texts, comm), comm);
    model.follow(loader);
    lockstep::optim::FusedAdamW optimizer(text::parameter_groups(model.module(), settings),
                                          settings.adamw());
    lockstep::amp::GradScaler scaler(comm, {.enabled = half});
    const lockstep::amp::AutocastSettings precision{.device = comm.device().type(),
                                                    .dtype = half ? at::kHalf : at::kBFloat16};
    text::Run run(settings, texts, comm, loader.batches());
    run.result().dtype = half ? "float16" : "bfloat16";
    run.starts();
    for (int epoch = 0; !run.finished(); ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : loader) {
        run.ends(text::kData);
        optimizer.zero_grad();
        at::Tensor loss;
        {
          const lockstep::amp::Autocast autocast(precision);
          loss = text::cross_entropy(text::forward(model, batch), batch.labels);
        }
        run.ends(text::kForward);
        const double waited = model.times().waiting;
        scaler.scale(loss).backward();
        run.ends(text::kBackward, model.times().waiting - waited);
        lockstep::optim::set_learning_rate(optimizer, run.rate());
        scaler.step(optimizer);
        scaler.update();
        run.ends(text::kOptimizer);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates())
          run.dev(text::evaluate(model.module(), texts, comm, precision), model.module());
        if (run.finished()) break;
      }
    }
    run.finish(model.module());
  });
}
