// DistributedDataParallel on every rank: what methods 3 and 4, which differ in how ranks are
// started, do on each of them.
#pragma once

#include <lockstep/parallel/ddp/ddp.h>

#include "text_training.h"

namespace text {

inline void train_distributed(const Settings& settings) {
  lockstep::Communicator comm = join_job();
  const Texts texts = load_texts(settings, comm.size());
  lockstep::data::DistributedSampler sampler(texts.train.size(), comm, {.seed = settings.seed});
  lockstep::data::Loader loader(texts.train, sampler,
                                {.batch_size = settings.batch_size, .device = comm.device()});

  lockstep::DistributedDataParallel model(make_model(settings, texts, comm), comm);
  model.follow(loader);
  lockstep::optim::FusedAdamW optimizer(parameter_groups(model.module(), settings),
                                        settings.adamw());
  Run run(settings, texts, comm, loader.batches());
  run.starts();
  for (int epoch = 0; !run.finished(); ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      run.ends(kData);
      optimizer.zero_grad();
      const auto loss = cross_entropy(forward(model, batch), batch.labels);
      run.ends(kForward);
      const double waited = model.times().waiting;
      loss.backward();  // gradients are averaged over the ranks on the way
      run.ends(kBackward, model.times().waiting - waited);
      lockstep::optim::set_learning_rate(optimizer, run.rate());
      optimizer.step();
      run.ends(kOptimizer);
      run.step(loss, batch.labels.size(0));
      if (run.evaluates()) run.dev(evaluate(model.module(), texts, comm), model.module());
      if (run.finished()) break;
    }
  }
  run.finish(model.module());
}

}  // namespace text
