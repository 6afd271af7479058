#include "lockstep/parallel/zero/zero_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/parallel/zero/internal/config_sections.h"
#include "lockstep/parallel/zero/internal/json_section.h"

namespace lockstep::inline v0::zero {
namespace {

using internal::JsonSection;
using nlohmann::ordered_json;

std::string product(int64_t micro, int64_t steps, int ranks) {
  return std::to_string(micro) + " (train_micro_batch_size_per_gpu) x " + std::to_string(steps) +
         " (gradient_accumulation_steps) x " + std::to_string(ranks) +
         (ranks == 1 ? " rank" : " ranks");
}

void fill_batch_sizes(ZeroConfig& config, int64_t ranks) {
  int64_t& all = config.train_batch_size;
  int64_t& micro = config.train_micro_batch_size;
  int64_t& steps = config.gradient_accumulation_steps;
  if (all == 0 && micro == 0) {
    throw InvalidArgument(
        "the configuration has no batch size; give train_micro_batch_size_per_gpu (of one rank) "
        "or train_batch_size (of all)");
  }
  if (steps == 0) steps = all != 0 && micro != 0 ? std::max<int64_t>(1, all / micro / ranks) : 1;
  if (micro == 0) micro = std::max<int64_t>(1, all / steps / ranks);
  const __int128 whole = static_cast<__int128>(micro) * steps * ranks;
  if (all == 0 && whole <= std::numeric_limits<int64_t>::max()) all = static_cast<int64_t>(whole);
}

ordered_json to_json(const optim::OptimizerSpec& config) {
  ordered_json params = {{"lr", config.lr}, {"weight_decay", config.weight_decay}};
  if (config.type == optim::OptimizerType::kSgd) {
    params["momentum"] = config.momentum;
    params["dampening"] = config.dampening;
    params["nesterov"] = config.nesterov;
    return {{"type", "SGD"}, {"params", params}};
  }
  params["betas"] = {config.beta1, config.beta2};
  params["eps"] = config.eps;
  params["amsgrad"] = config.amsgrad;
  const bool decoupled = config.type == optim::OptimizerType::kAdamW;
  params["adam_w_mode"] = decoupled;
  return {{"type", decoupled ? "AdamW" : "Adam"}, {"params", params}};
}

ordered_json to_json(const optim::WarmupSchedule& config) {
  ordered_json params = {
      {"warmup_num_steps", config.warmup_num_steps},
      {"warmup_type", config.warmup_type == optim::WarmupShape::kLog ? "log" : "linear"}};
  if (config.type == optim::WarmupScheduleType::kWarmupCosine) {
    params["warmup_min_ratio"] = config.warmup_min_ratio;
    params["cos_min_ratio"] = config.cos_min_ratio;
  } else {
    params["warmup_min_lr"] = config.warmup_min_lr;
    if (config.warmup_max_lr) params["warmup_max_lr"] = *config.warmup_max_lr;
  }
  if (config.type != optim::WarmupScheduleType::kWarmup)
    params["total_num_steps"] = config.total_num_steps;
  const char* type = config.type == optim::WarmupScheduleType::kWarmup        ? "WarmupLR"
                     : config.type == optim::WarmupScheduleType::kWarmupDecay ? "WarmupDecayLR"
                                                                              : "WarmupCosineLR";
  return {{"type", type}, {"params", params}};
}

}  // namespace

ZeroConfig zero_config_from_json(const std::string& text, const std::string& source) {
  const nlohmann::json json = internal::parse_config(text, source);
  JsonSection top(JsonObject(json, source, refuse_as<InvalidArgument>));
  ZeroConfig config;
  config.train_batch_size = top.whole("train_batch_size", 0, 1);
  config.train_micro_batch_size = top.whole("train_micro_batch_size_per_gpu", 0, 1);
  config.gradient_accumulation_steps = top.whole("gradient_accumulation_steps", 0, 1);
  config.gradient_clipping = internal::read_clipping(top);
  if (top.find("optimizer") != nullptr)
    config.optimizer = internal::read_optimizer(top.section("optimizer"));
  if (top.find("scheduler") != nullptr)
    config.scheduler = internal::read_scheduler(top.section("scheduler"));
  const bool old_bf16 = internal::read_bf16(top.section("bfloat16"));
  const bool bf16 = internal::read_bf16(top.section("bf16")) || old_bf16;
  const bool fp16 = internal::read_fp16(top.section("fp16"), config.loss_scale);
  if (bf16 && fp16) throw InvalidArgument(source + ": bf16 and fp16 are both enabled; choose one");
  if (bf16) config.precision = optim::Precision::kBFloat16;
  if (fp16) config.precision = optim::Precision::kFloat16;
  internal::read_zero(top, config);
  internal::check_the_rest(top);
  top.finish();
  return config;
}

ZeroConfig load_zero_config(const std::string& path) {
  return zero_config_from_json(read_named_file(path), path);
}

std::string to_json(const ZeroConfig& config) {
  ordered_json json;
  if (config.train_batch_size != 0) json["train_batch_size"] = config.train_batch_size;
  if (config.train_micro_batch_size != 0)
    json["train_micro_batch_size_per_gpu"] = config.train_micro_batch_size;
  if (config.gradient_accumulation_steps != 0)
    json["gradient_accumulation_steps"] = config.gradient_accumulation_steps;
  if (config.optimizer) json["optimizer"] = to_json(*config.optimizer);
  if (config.scheduler) json["scheduler"] = to_json(*config.scheduler);
  const LossScaleConfig& scale = config.loss_scale;
  json["bf16"] = {{"enabled", config.precision == optim::Precision::kBFloat16}};
  json["fp16"] = {{"enabled", config.precision == optim::Precision::kFloat16},
                  {"loss_scale", scale.loss_scale},
                  {"initial_scale_power", scale.initial_scale_power},
                  {"loss_scale_window", scale.loss_scale_window},
                  {"hysteresis", scale.hysteresis},
                  {"consecutive_hysteresis", scale.consecutive_hysteresis},
                  {"min_loss_scale", scale.min_loss_scale}};
  json["gradient_clipping"] = config.gradient_clipping;
  json["zero_optimization"] = {{"stage", config.stage},
                               {"overlap_comm", config.overlap_comm},
                               {"reduce_bucket_size", config.reduce_bucket_size},
                               {"ignore_unused_parameters", config.ignore_unused_parameters}};
  if (!config.state_directory.empty())
    json["zero_optimization"]["offload_optimizer"] = {{"device", "nvme"},
                                                      {"nvme_path", config.state_directory}};
  return json.dump(2) + "\n";
}

ZeroConfig resolved(const ZeroConfig& config, int world_size) {
  ZeroConfig result = config;
  if (!config.optimizer) {
    throw InvalidArgument(
        "the configuration has no optimizer; give \"optimizer\": {\"type\": \"AdamW\", \"params\": "
        "{\"lr\": 0.0001}}");
  }
  fill_batch_sizes(result, world_size);
  const __int128 whole = static_cast<__int128>(result.train_micro_batch_size) *
                         result.gradient_accumulation_steps * world_size;
  if (result.train_batch_size != whole) {
    throw InvalidArgument(
        "train_batch_size is " + std::to_string(result.train_batch_size) + ", which is not " +
        product(result.train_micro_batch_size, result.gradient_accumulation_steps, world_size) +
        "; leave one of them out, or change it");
  }
  return result;
}

optim::StepSpec spec_of(const ZeroConfig& config) {
  return {.optimizer = *config.optimizer,
          .schedule = {.deepspeed = config.scheduler},
          .precision = config.precision,
          .max_norm = config.gradient_clipping,
          .accumulation = config.gradient_accumulation_steps};
}

}  // namespace lockstep::inline v0::zero
