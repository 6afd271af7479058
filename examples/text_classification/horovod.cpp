// Tutorial 003, method 6: Horovod's way. The model stays as it is; the optimizer averages the
// gradients, in 16 bits.
//   lockstep run -np 2 -H localhost:2 --horovod-prefix horovod --data ... --vocab ...
#include <lockstep/parallel/horovod/broadcast.h>
#include <lockstep/parallel/horovod/distributed_optimizer.h>

#include "text_training.h"

int main(int argc, char** argv) {
  return text::run_program("horovod", argc, argv, [](const text::Settings& settings) {
    lockstep::Communicator comm = text::join_job();
    const text::Texts texts = text::load_texts(settings, comm.size());
    lockstep::data::DistributedSampler sampler(texts.train.size(), comm, {.seed = settings.seed});
    lockstep::data::Loader loader(texts.train, sampler,
                                  {.batch_size = settings.batch_size, .device = comm.device()});

    lockstep::BertClassifier model = text::make_model(settings, texts, comm);
    lockstep::broadcast_parameters(model, comm, 0);
    lockstep::DistributedOptimizer<lockstep::optim::FusedAdamW> optimizer(
        comm, model->named_parameters(), {.compression = lockstep::Compression::kFloat16},
        text::parameter_groups(model, settings), settings.adamw());
    lockstep::broadcast_optimizer_state(optimizer, comm, 0);
    text::Run run(settings, texts, comm, loader.batches());
    run.starts();
    for (int epoch = 0; !run.finished(); ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : loader) {
        run.ends(text::kData);
        optimizer.zero_grad();
        const auto loss = text::cross_entropy(text::forward(model, batch), batch.labels);
        run.ends(text::kForward);
        loss.backward();
        run.ends(text::kBackward);
        optimizer.synchronize();
        run.ends(text::kWait);
        lockstep::optim::set_learning_rate(optimizer, run.rate());
        optimizer.step();
        run.ends(text::kOptimizer);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates()) run.dev(text::evaluate(model, texts, comm), model);
        if (run.finished()) break;
      }
    }
    run.finish(model);
  });
}
