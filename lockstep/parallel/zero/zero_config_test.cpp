#include "lockstep/parallel/zero/zero_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::zero::config_test {
namespace {

using ::testing::HasSubstr;

ZeroConfig parse(const std::string& text) {
  return zero_config_from_json(text, "ds.json");
}

std::string error_of(const std::function<void()>& fn) {
  return message_of<InvalidArgument>(fn);
}

std::string refusal(const std::string& text) {
  return error_of([&] { parse(text); });
}

// A configuration with an optimizer and additional settings.
std::string with(const std::string& settings) {
  return R"({"optimizer": {"type": "AdamW"}, )" + settings + "}";
}

TEST(ZeroConfig, TheTutorialsFourLinesSuffice) {
  const ZeroConfig config = parse(R"({
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": { "type": "Adam", "params": { "lr": 1e-4 } }
  })");
  const ZeroConfig of_two = resolved(config, 2);
  EXPECT_EQ(of_two.train_batch_size, 64);
  EXPECT_EQ(of_two.train_micro_batch_size, 32);
  EXPECT_EQ(of_two.gradient_accumulation_steps, 1);
  EXPECT_EQ(of_two.optimizer->type, optim::OptimizerType::kAdamW);  // as in DeepSpeed
  EXPECT_EQ(of_two.optimizer->lr, 1e-4);
  EXPECT_EQ(of_two.optimizer->weight_decay, 0);
  EXPECT_EQ(of_two.gradient_clipping, 0);
  EXPECT_EQ(of_two.precision, optim::Precision::kFloat32);
  EXPECT_EQ(of_two.stage, 0);
}

TEST(ZeroConfig, EverythingThatIsReadArrives) {
  const ZeroConfig config = parse(R"({ // comments are fine
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4,
    "optimizer": {"type": "sgd", "params": {"lr": 0.5, "momentum": 0.9, "dampening": 0.1,
                                            "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6, "warmup_max_lr": 1e-2,
        "warmup_num_steps": 10, "total_num_steps": 100, "warmup_type": "linear"}},
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 8, "loss_scale_window": 50,
             "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.5},
    "bf16": {"enabled": false}, "gradient_clipping": 1.5,
    "zero_optimization": {"stage": 1, "overlap_comm": false, "reduce_bucket_size": 2e8,
                          "ignore_unused_parameters": false}
  })");
  const optim::OptimizerSpec optimizer{.type = optim::OptimizerType::kSgd,
                                       .lr = 0.5,
                                       .weight_decay = 0.01,
                                       .momentum = 0.9,
                                       .dampening = 0.1};
  const optim::WarmupSchedule scheduler{.type = optim::WarmupScheduleType::kWarmupDecay,
                                        .total_num_steps = 100,
                                        .warmup_num_steps = 10,
                                        .warmup_type = optim::WarmupShape::kLinear,
                                        .warmup_min_lr = 1e-6,
                                        .warmup_max_lr = 1e-2};
  const LossScaleConfig scale{.loss_scale = 0,
                              .initial_scale_power = 8,
                              .loss_scale_window = 50,
                              .hysteresis = 3,
                              .consecutive_hysteresis = true,
                              .min_loss_scale = 0.5};
  const ZeroConfig expected{.train_batch_size = 64,
                            .train_micro_batch_size = 8,
                            .gradient_accumulation_steps = 4,
                            .optimizer = optimizer,
                            .scheduler = scheduler,
                            .precision = optim::Precision::kFloat16,
                            .loss_scale = scale,
                            .gradient_clipping = 1.5,
                            .stage = 1,
                            .overlap_comm = false,
                            .reduce_bucket_size = 200'000'000,
                            .ignore_unused_parameters = false};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(parse(to_json(config)), config);
}

TEST(ZeroConfig, WrittenAndReadAgainIsTheSame) {
  for (const char* text : {
           R"({})",
           R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "amsgrad": true}}})",
           R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}},
               "scheduler": {"type": "WarmupLR"}, "bf16": {"enabled": true}})",
           R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 7,
               "warmup_min_ratio": 0.25, "cos_min_ratio": 0.5}}, "zero_optimization": true})",
           R"({"zero_optimization": {"stage": 2,
               "offload_optimizer": {"device": "nvme", "nvme_path": "/local/nvme"}}})",
       })
    EXPECT_EQ(parse(to_json(parse(text))), parse(text)) << text;
}

TEST(ZeroConfig, AdamIsAdamWUnlessToldOtherwise) {
  const auto of = [](const std::string& type, const std::string& params) {
    return *parse(R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}")
                .optimizer;
  };
  EXPECT_EQ(of("Adam", "").type, optim::OptimizerType::kAdamW);
  EXPECT_EQ(of("Adam", R"("adam_w_mode": false)").type, optim::OptimizerType::kAdam);
  EXPECT_EQ(of("AdamW", R"("adam_w_mode": false)").type, optim::OptimizerType::kAdamW);
  EXPECT_EQ(of("AdamW", "").weight_decay, 0);
  EXPECT_EQ(of("AdamW", R"("torch_adam": true)").weight_decay, 0.01);
  EXPECT_EQ(of("Adam", R"("torch_adam": true, "adam_w_mode": false)").weight_decay, 0);
  EXPECT_EQ(of("Adam", R"("betas": [0.8, 0.99])").beta2, 0.99);
}

// Tutorial 003's ZeRO configuration.
TEST(ZeroConfig, ZeroThreeIsReadWithItsKeys) {
  const ZeroConfig config = parse(R"({
    "train_micro_batch_size_per_gpu": 32, "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}},
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000,
             "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "zero_optimization": {
      "stage": 3, "allgather_partitions": true, "allgather_bucket_size": 2e8,
      "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
      "contiguous_gradients": true, "stage3_prefetch_bucket_size": "auto",
      "offload_optimizer": {"device": "cpu", "pin_memory": true}},
    "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true,
      "contiguous_memory_optimization": false, "synchronize_checkpoint_boundary": false},
    "wall_clock_breakdown": true, "steps_per_print": 100
  })");
  EXPECT_EQ(config.stage, 3);
  EXPECT_EQ(config.state_directory, "");
  EXPECT_EQ(resolved(config, 2).stage, 3);
}

TEST(ZeroConfig, OneBatchSizeSuffices) {
  const auto sizes = [](const std::string& settings, int ranks) {
    const ZeroConfig c = resolved(parse(with(settings)), ranks);
    return std::vector<int64_t>{c.train_batch_size, c.train_micro_batch_size,
                                c.gradient_accumulation_steps};
  };
  EXPECT_EQ(sizes(R"("train_batch_size": 64)", 4), (std::vector<int64_t>{64, 16, 1}));
  EXPECT_EQ(sizes(R"("train_batch_size": 64, "gradient_accumulation_steps": 2)", 4),
            (std::vector<int64_t>{64, 8, 2}));
  EXPECT_EQ(sizes(R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 4)", 4),
            (std::vector<int64_t>{64, 4, 4}));
  EXPECT_EQ(sizes(R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3)", 2),
            (std::vector<int64_t>{24, 4, 3}));
}

TEST(ZeroConfig, ContradictionsAreNamedWithTheArithmetic) {
  const auto text = [](const std::string& settings, int ranks) {
    return error_of([&] { resolved(parse(with(settings)), ranks); });
  };
  EXPECT_EQ(text(R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 16,
                    "gradient_accumulation_steps": 1)",
                 2),
            "train_batch_size is 64, which is not 16 (train_micro_batch_size_per_gpu) x 1 "
            "(gradient_accumulation_steps) x 2 ranks; leave one of them out, or change it");
  EXPECT_THAT(text(R"("train_batch_size": 64)", 3), HasSubstr("21 (train_micro_batch"));
  EXPECT_THAT(text(R"("train_batch_size": 2)", 4), HasSubstr("x 4 ranks"));
  EXPECT_THAT(text(R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 24)", 2),
              HasSubstr("24 (train_micro_batch_size_per_gpu) x 1 "));
  EXPECT_THAT(text(R"("gradient_accumulation_steps": 2)", 2), HasSubstr("no batch size"));
  EXPECT_THAT(text(R"("train_micro_batch_size_per_gpu": 9e15,
                      "gradient_accumulation_steps": 9e15)",
                   2),
              HasSubstr("is 0, which is not"));
  EXPECT_THAT(error_of([] { resolved(parse(R"({"train_batch_size": 2})"), 1); }),
              HasSubstr("no optimizer"));
}

struct Refusal {
  std::string text, says;
};

TEST(ZeroConfig, WhatCannotBeMeantIsNamed) {
  const Refusal refusals[] = {
      {"", "ds.json: is not JSON (at byte 1)"},
      {"[]", "ds.json: is []; give a JSON object"},
      {R"({"a": 1e999})",
       "ds.json: the number 1e999 is out of range; give one that a double holds"},
      {R"({"train_batch": 1})", R"(ds.json: "train_batch" is no setting)"},
      {R"({"train_micro_batch_size": 1})", R"(did you mean "train_micro_batch_size_per_gpu"?)"},
      {R"({"qwertz": 1})", "see docs/zero.md"},
      {R"({"optimizer": {"type": "AdamW", "params": {"beta": [0.9, 0.99]}}})",
       R"(ds.json: optimizer.params."beta" is no setting; did you mean "betas"?)"},
      {R"({"bf16": {"enabled": 1}})", "ds.json: bf16.enabled is 1; give true or false"},
      {R"({"train_batch_size": 1, "train_batch_size": 2})", "is given twice"},
      {R"({"train_batch_size": 2.5})", "train_batch_size is 2.5; give a whole number, 1 or more"},
      {R"({"train_batch_size": -1})", "give a whole number"},
      {R"({"train_batch_size": "auto"})", "Hugging Face's Trainer fills in"},
      {R"({"bf16": {"enabled": "auto"}})", "Hugging Face's Trainer fills in"},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})", "optimizer.params.lr"},
      {R"({"optimizer": {"type": "Lamb"}})", "give Adam, AdamW or SGD"},
      {R"({"optimizer": {"params": {}}})", "optimizer.type is missing; give Adam"},
      {R"({"optimizer": []})", "optimizer is []; give a JSON object"},
      {R"({"optimizer": {"type": "AdamW", "params": {"momentum": 0.9}}})", "momentum"},
      {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1]}}})", "two numbers"},
      {R"({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}})", "gradient_clipping"},
      {R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})", "momentum above 0"},
      {R"({"scheduler": {"type": "OneCycle"}})", "WarmupCosineLR"},
      {R"({"scheduler": {"type": "WarmupDecayLR"}})", "total_num_steps is missing"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5}}})", "no setting"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "exp"}}})", "log or linear"},
      {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", "both enabled"},
      {R"({"fp16": {"initial_scale_power": 200}})", "a power of 2 below 128"},
      {R"({"gradient_clipping": -1})", "0 or more"},
      {R"({"zero_optimization": {"stage": 4}})", "0, 1, 2 or 3"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})",
       "offload_optimizer.nvme_path is missing; give a directory"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "disk"}}})",
       R"("nvme" or "none")"},
      {R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/d"}}})",
       "parameters are in memory"},
      {R"({"zero_optimization": {"zero_quantized_weights": true}})", "which is not here"},
      {R"({"zero_optimization": {"overlap_com": true}})", R"(did you mean "overlap_comm"?)"},
      {R"({"activation_checkpointing": {"partition": true}})", "activation_checkpointing"},
      {R"({"amp": {"enabled": true}})", "amp is enabled"},
      {R"({"torch_autocast": {"enabled": true}})", "bf16"},
      {R"({"communication_data_type": "fp16"})", "which is not here"},
      {R"({"sequence_parallel_size": 2})", "which is not here"},
  };
  for (const Refusal& refused : refusals) {
    const std::string text = refusal(refused.text);
    EXPECT_THAT(text, HasSubstr(refused.says)) << refused.text;
    EXPECT_THAT(text, ::testing::Not(HasSubstr("\n"))) << refused.text;
  }
}

TEST(ZeroConfig, WhatIsHarmlessPasses) {
  for (
      const char* text : {
          R"({"amp": {"enabled": false}, "sequence_parallel_size": 1.0, "scheduler": null})",
          R"({"data_types": {"grad_accum_dtype": "fp32"}, "tensor_parallel": {"autotp_size": 1}})",
          R"({"zero_optimization": {"offload_param": {"device": "none"}, "stage3_max_live_parameters": 1e9}})",
          R"({"flops_profiler": {"enabled": true}, "tensorboard": {"enabled": true}})",
      })
    EXPECT_NO_THROW(parse(text)) << text;
}

TEST(ZeroConfig, AFileIsReadByItsNameAndMissedByIt) {
  const TestDirectory directory;
  const std::string path = directory / "ds.json";
  EXPECT_THAT(error_of([&] { load_zero_config(path); }), HasSubstr("cannot read " + path));
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { load_zero_config(directory / "pipe"); }),
              HasSubstr("is no ordinary file"));
  directory.write("ds.json", R"({"zero_optimization": {"stage": 1}})");
  EXPECT_EQ(load_zero_config(path).stage, 1);
  directory.write("ds.json", "{");
  EXPECT_THAT(error_of([&] { load_zero_config(path); }), HasSubstr(path + ": is not JSON"));
}

}  // namespace
}  // namespace lockstep::inline v0::zero::config_test
