// Tutorial 003, method 7: DeepSpeed's words. The configuration decides batch size, optimizer,
// schedule and precision; each rank keeps its part of the optimizer's state only (ZeRO stage 1).
//   lockstep run --nproc-per-node 2 zero_engine --config ds_config.json --data ... --vocab ...
#include <lockstep/parallel/zero/engine.h>

#include <nlohmann/json.hpp>

#include "text_training.h"

namespace {

// What the other methods do, as a DeepSpeed configuration.
lockstep::zero::ZeroConfig as_settings(const text::Settings& settings, int64_t steps) {
  nlohmann::json json{
      {"train_micro_batch_size_per_gpu", settings.batch_size},
      {"optimizer",
       {{"type", "AdamW"},
        {"params", {{"lr", settings.lr}, {"weight_decay", settings.weight_decay}}}}},
      {"zero_optimization", {{"stage", 1}}}};
  if (settings.linear_decay) {
    json["scheduler"] = {
        {"type", "WarmupDecayLR"},
        {"params",
         {{"total_num_steps", steps},
          {"warmup_max_lr", settings.lr},
          {"warmup_min_lr", 0},
          {"warmup_type", "linear"},
          {"warmup_num_steps",
           std::max<int64_t>(
               2, static_cast<int64_t>(settings.warmup_ratio * static_cast<double>(steps)))}}}};
  }
  if (settings.amp == "bfloat16") json["bf16"] = {{"enabled", true}};
  if (settings.amp == "float16") json["fp16"] = {{"enabled", true}};
  return lockstep::zero::zero_config_from_json(json.dump(), "zero_engine");
}

// Seconds so far of waiting for gradients and of gathering the ranks' parts of the parameters.
double waiting(const lockstep::ZeroOptimizer& optimizer) {
  return optimizer.times().waiting + optimizer.times().gathering;
}

}  // namespace

int main(int argc, char** argv) {
  return text::run_program("zero_engine", argc, argv, [](text::Settings settings) {
    using lockstep::optim::Precision;
    lockstep::Communicator comm = text::join_job();
    lockstep::zero::ZeroConfig config;
    if (!settings.config.empty()) {
      config =
          lockstep::zero::resolved(lockstep::zero::load_zero_config(settings.config), comm.size());
      settings.batch_size = config.train_micro_batch_size;
    }
    const text::Texts texts = text::load_texts(settings, comm.size());
    lockstep::data::DistributedSampler sampler(texts.train.size(), comm, {.seed = settings.seed});
    lockstep::data::Loader loader(texts.train, sampler,
                                  {.batch_size = settings.batch_size, .device = comm.device()});
    text::Run run(settings, texts, comm, loader.batches());
    if (settings.config.empty()) config = as_settings(settings, run.total_steps());

    auto engine = lockstep::zero::initialize(text::make_model(settings, texts, comm), comm, config);
    const bool half = config.precision == Precision::kFloat16;
    run.result().dtype = half                                       ? "float16"
                         : config.precision == Precision::kBFloat16 ? "bfloat16"
                                                                    : "float32";
    run.starts();
    for (int epoch = 0; !run.finished(); ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : loader) {
        run.ends(text::kData);
        const auto loss = text::cross_entropy(text::forward(engine, batch), batch.labels);
        run.ends(text::kForward);
        engine.backward(loss);
        run.ends(text::kBackward);
        const double waited = waiting(engine.optimizer());
        engine.step();
        run.ends(text::kOptimizer, waiting(engine.optimizer()) - waited);
        run.step(loss, batch.labels.size(0));
        if (run.evaluates()) run.dev(text::evaluate(engine.module(), texts, comm), engine.module());
        if (run.finished()) break;
      }
    }
    run.finish(engine.module());
  });
}
