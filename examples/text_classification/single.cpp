// Tutorial 003, method 1: one process, one device. What the other methods add to this loop is what
// they are about.
#include "text_training.h"

int main(int argc, char** argv) {
  return text::run_program("single", argc, argv, [](const text::Settings& settings) {
    lockstep::Communicator alone = lockstep::init({.backend = "local"});
    const text::Texts texts = text::load_texts(settings, 1);
    lockstep::data::DistributedSampler sampler(texts.train.size(), alone, {.seed = settings.seed});
    lockstep::data::Loader loader(texts.train, sampler,
                                  {.batch_size = settings.batch_size, .device = alone.device()});

    lockstep::BertClassifier model = text::make_model(settings, texts, alone);
    lockstep::optim::FusedAdamW optimizer(text::parameter_groups(model, settings),
                                          settings.adamw());
    text::Run run(settings, texts, alone, loader.batches());
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
        lockstep::optim::set_learning_rate(optimizer, run.rate());
        optimizer.step();
        run.ends(text::kOptimizer);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates()) run.dev(text::evaluate(model, texts, alone), model);
        if (run.finished()) break;
      }
    }
    run.finish(model);
  });
}
