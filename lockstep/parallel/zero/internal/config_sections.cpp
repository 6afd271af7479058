#include "lockstep/parallel/zero/internal/config_sections.h"

#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::zero::internal {
namespace {

constexpr double kHuge = std::numeric_limits<double>::max();

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

double at_least_zero(JsonSection& section, const char* key, double fallback) {
  return section.number(key, fallback, 0, kHuge, "a number, 0 or more");
}

double fraction(JsonSection& section, const char* key, double fallback) {
  constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon() / 2;
  return section.number(key, fallback, 0, kBelowOne, "0 or more, and less than 1");
}

optim::OptimizerType type_of(const JsonSection& section, const std::string& name) {
  if (lower(name) == "adam") return optim::OptimizerType::kAdam;
  if (lower(name) == "adamw") return optim::OptimizerType::kAdamW;
  if (lower(name) == "sgd") return optim::OptimizerType::kSgd;
  section.refuse("type", "Adam, AdamW or SGD, which are here");
}

void read_betas(JsonSection& params, optim::OptimizerSpec& config) {
  const nlohmann::json* betas = params.find("betas");
  if (betas == nullptr) return;
  const auto fits = [](const nlohmann::json& beta) {
    return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;
  };
  if (!betas->is_array() || betas->size() != 2 || !fits(betas->at(0)) || !fits(betas->at(1)))
    params.refuse("betas", "two numbers of 0 or more and less than 1, as [0.9, 0.999]");
  config.beta1 = betas->at(0).get<double>();
  config.beta2 = betas->at(1).get<double>();
}

// DeepSpeed uses AdamW for "Adam" by default, with a weight decay of 0; with "torch_adam" it uses
// PyTorch's AdamW, whose weight decay is 0.01.
void read_adam(JsonSection& params, optim::OptimizerSpec& config) {
  const bool torch_adam = params.flag("torch_adam", false);
  if (params.flag("adam_w_mode", true)) config.type = optim::OptimizerType::kAdamW;
  const bool decoupled = config.type == optim::OptimizerType::kAdamW;
  read_betas(params, config);
  config.eps = at_least_zero(params, "eps", 1e-8);
  config.amsgrad = params.flag("amsgrad", false);
  config.weight_decay = at_least_zero(params, "weight_decay", torch_adam && decoupled ? 0.01 : 0.0);
  params.refuse_unless({"bias_correction"}, {"true"});
  params.read_over({"fused", "foreach", "set_grad_none", "fp32_optimizer_states"});
}

void read_sgd(JsonSection& params, optim::OptimizerSpec& config) {
  config.momentum = fraction(params, "momentum", 0);
  config.dampening = fraction(params, "dampening", 0);
  config.nesterov = params.flag("nesterov", false);
  config.weight_decay = at_least_zero(params, "weight_decay", 0);
  params.read_over({"fused", "foreach"});
  if (config.nesterov && (config.momentum == 0 || config.dampening != 0)) {
    throw InvalidArgument(params.path("nesterov") +
                          " is true, which needs a momentum above 0 and a dampening of 0");
  }
}

}  // namespace

optim::OptimizerSpec read_optimizer(JsonSection section) {
  optim::OptimizerSpec config;
  config.type = type_of(section, section.text("type", ""));
  section.read_over({"legacy_fusion"});
  JsonSection params = section.section("params");
  config.lr = at_least_zero(params, "lr", 1e-3);
  params.refuse_unless({"max_grad_norm"}, {"0"}, "give gradient_clipping beside \"optimizer\"");
  params.refuse_unless({"maximize"}, {"false"});
  if (config.type == optim::OptimizerType::kSgd)
    read_sgd(params, config);
  else
    read_adam(params, config);
  params.finish();
  section.finish();
  return config;
}

namespace {

optim::WarmupScheduleType schedule_of(const JsonSection& section, const std::string& name) {
  if (name == "WarmupLR") return optim::WarmupScheduleType::kWarmup;
  if (name == "WarmupDecayLR") return optim::WarmupScheduleType::kWarmupDecay;
  if (name == "WarmupCosineLR") return optim::WarmupScheduleType::kWarmupCosine;
  section.refuse("type", "WarmupLR, WarmupDecayLR or WarmupCosineLR, which are here");
}

}  // namespace

optim::WarmupSchedule read_scheduler(JsonSection section) {
  optim::WarmupSchedule config;
  config.type = schedule_of(section, section.text("type", ""));
  JsonSection params = section.section("params");
  config.warmup_num_steps = params.whole("warmup_num_steps", 1000, 1);
  const std::string shape = params.text("warmup_type", "log");
  if (shape != "log" && shape != "linear") params.refuse("warmup_type", "log or linear");
  config.warmup_type = shape == "log" ? optim::WarmupShape::kLog : optim::WarmupShape::kLinear;
  params.refuse_unless({"last_batch_iteration"}, {"-1"});
  if (config.type == optim::WarmupScheduleType::kWarmupCosine) {
    config.warmup_min_ratio = params.number("warmup_min_ratio", 0, 0, 1, "0 to 1");
    config.cos_min_ratio = params.number("cos_min_ratio", 0.0001, 0, 1, "0 to 1");
  } else {
    config.warmup_min_lr = at_least_zero(params, "warmup_min_lr", 0);
    const double top = at_least_zero(params, "warmup_max_lr", -1);
    if (top >= 0) config.warmup_max_lr = top;
  }
  if (config.type != optim::WarmupScheduleType::kWarmup) {
    if (params.find("total_num_steps") == nullptr) {
      throw InvalidArgument(params.path("total_num_steps") +
                            " is missing; give the number of the optimizer's steps");
    }
    config.total_num_steps = params.whole("total_num_steps", 0, 1);
  }
  params.finish();
  section.finish();
  return config;
}

bool read_bf16(JsonSection section) {
  const bool enabled = section.flag("enabled", false);
  section.read_over({"immediate_grad_update", "check_grad_overflow"});
  section.refuse_unless({"bf16_master_weights_and_grads", "bf16_optimizer_states"}, {"false"},
                        "leave it out: parameters and state are float32");
  section.finish();
  return enabled;
}

bool read_fp16(JsonSection section, LossScaleConfig& scale) {
  constexpr int64_t kLargestPower = 127;  // of a float32
  const bool enabled = section.flag("enabled", false);
  scale.loss_scale =
      section.number("loss_scale", 0, 0, 1e38, "0, which is dynamic, or a scale up to 1e38");
  scale.initial_scale_power = section.whole("initial_scale_power", 16, 0);
  scale.loss_scale_window = section.whole("loss_scale_window", 1000, 1);
  scale.hysteresis = section.whole("hysteresis", 2, 1);
  scale.consecutive_hysteresis = section.flag("consecutive_hysteresis", false);
  scale.min_loss_scale = section.number("min_loss_scale", 1, std::numeric_limits<float>::min(),
                                        std::numeric_limits<float>::max(), "a number above 0");
  if (scale.initial_scale_power > kLargestPower)
    section.refuse("initial_scale_power", "a power of 2 below 128");
  section.read_over({"auto_cast", "fused_mode"});
  section.refuse_unless({"fp16_master_weights_and_grads"}, {"false"},
                        "leave it out: parameters and state are float32");
  section.finish();
  return enabled;
}

namespace {

// The destination of offloaded state; "": it stays in memory.
std::string offload_directory(JsonSection section) {
  const std::string device = section.text("device", "none");
  if (device != "none" && device != "cpu" && device != "nvme")
    section.refuse("device", "\"cpu\", \"nvme\" or \"none\"");
  const std::string path = section.text("nvme_path", "");
  if (device != "nvme") return {};
  if (path.empty()) section.refuse("nvme_path", "a directory");
  return path;
}

void read_zero_keys(JsonSection& zero, ZeroConfig& config) {
  const int64_t stage = zero.whole("stage", 0, 0);
  if (stage > 3) zero.refuse("stage", "0, 1, 2 or 3");
  config.stage = static_cast<int>(stage);
  config.overlap_comm = zero.flag("overlap_comm", true);
  if (const auto* size = zero.find("reduce_bucket_size"); size != nullptr && *size != "auto")
    config.reduce_bucket_size = zero.whole("reduce_bucket_size", 0, 1);
  config.ignore_unused_parameters = zero.flag("ignore_unused_parameters", true);
  config.state_directory = offload_directory(zero.section("offload_optimizer"));
  if (!offload_directory(zero.section("offload_param")).empty())
    zero.refuse("offload_param", "\"cpu\" or \"none\" as its device: parameters are in memory");
  zero.read_over({"contiguous_gradients",
                  "reduce_scatter",
                  "use_multi_rank_bucket_allreduce",
                  "allgather_partitions",
                  "allgather_bucket_size",
                  "allgather_size",
                  "load_from_fp32_weights",
                  "elastic_checkpoint",
                  "sub_group_size",
                  "cpu_offload",
                  "cpu_offload_param",
                  "cpu_offload_params",
                  "cpu_offload_use_pin_memory",
                  "legacy_stage1",
                  "round_robin_gradients",
                  "memory_efficient_linear",
                  "override_module_apply",
                  "log_trace_cache_warnings",
                  "enable_sanity_checks",
                  "pipeline_loading_checkpoint",
                  "leaf_module",
                  "mics_hierarchical_params_gather",
                  "zeropp_loco_param",
                  "save_muon_momentum_buffer_in_memory"});
  for (const char* name :
       {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
        "param_persistence_threshold", "model_persistence_threshold",
        "gather_16bit_weights_on_model_save", "gather_fp16_weights_on_model_save",
        "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
        "partition_stream_chunk_size"}) {
    const std::string full = std::string("stage3_") + name;
    zero.read_over({name, full.c_str()});
  }
  zero.refuse_unless({"zero_hpz_partition_size"}, {"0", "1"});
  zero.refuse_unless({"mics_shard_size"}, {"-1", "0"});
  zero.refuse_unless(
      {"zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"},
      {"false"});
  zero.refuse_unless({"zenflow"}, {});
}

}  // namespace

double read_clipping(JsonSection& top) {
  return at_least_zero(top, "gradient_clipping", 0);
}

void read_zero(JsonSection& top, ZeroConfig& config) {
  const nlohmann::json* value = top.find("zero_optimization");
  if (value != nullptr && value->is_boolean()) {  // an old spelling
    config.stage = value->get<bool>() ? 1 : 0;
    return;
  }
  JsonSection zero = top.section("zero_optimization");
  read_zero_keys(zero, config);
  zero.finish();
}

namespace {

void check_activation_checkpointing(JsonSection section) {
  // In DeepSpeed these are settings of a function that a model calls; here the model itself decides
  // what it recomputes.
  section.read_over({"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
                     "number_checkpoints", "synchronize_checkpoint_boundary", "profile"});
  section.finish();
}

void check_data_types(JsonSection section) {
  section.refuse_unless({"grad_accum_dtype"}, {"\"fp32\""}, "gradients add up in float32");
  section.read_over({"param_dtype", "buffer_dtype"});
  section.finish();
}

}  // namespace

// The keys of DeepSpeed's that do not concern the training itself.
void check_the_rest(JsonSection& top) {
  check_activation_checkpointing(top.section("activation_checkpointing"));
  check_data_types(top.section("data_types"));
  top.read_over({"steps_per_print",
                 "wall_clock_breakdown",
                 "memory_breakdown",
                 "dump_state",
                 "log_level",
                 "timers",
                 "comms_logger",
                 "flops_profiler",
                 "tensorboard",
                 "wandb",
                 "comet",
                 "csv_monitor",
                 "monitor_config",
                 "checkpoint",
                 "aio",
                 "nebula",
                 "datastates_ckpt",
                 "dataloader_drop_last",
                 "vocabulary_size",
                 "autotuning",
                 "zero_allow_untested_optimizer",
                 "zero_force_ds_cpu_optimizer",
                 "allgather_size",
                 "disable_allgather",
                 "seq_parallel_communication_data_type",
                 "graph_harvesting",
                 "use_data_before_expert_parallelism",
                 "pipeline",
                 "compile",
                 "gradient_accumulation_dtype",
                 "zero_init"});
  top.refuse_if_enabled({"amp", "elasticity", "eigenvalue", "progressive_layer_drop",
                         "curriculum_learning", "data_efficiency", "hybrid_engine",
                         "quantize_training", "expert_parallel"});
  const nlohmann::json* autocast = top.find("torch_autocast");
  if (autocast != nullptr && autocast->is_object() &&
      autocast->value("enabled", nlohmann::json(false)) == true) {
    throw InvalidArgument(top.path("torch_autocast") +
                          " is enabled; say \"bf16\": {\"enabled\": true} instead, which is "
                          "autocast over float32 parameters here");
  }
  top.refuse_unless({"sparse_attention", "weight_quantization", "compression_training"}, {});
  top.refuse_unless({"sparse_gradients", "prescale_gradients"}, {"false"});
  top.refuse_unless({"gradient_predivide_factor", "sequence_parallel_size"}, {"1"});
  top.refuse_unless({"gradient_allreduce_op"}, {"\"avg\"", "\"average\"", "\"mean\""});
  top.refuse_unless({"communication_data_type"}, {"\"fp32\""});
  top.refuse_unless({"tensor_parallel"}, {"{}", "{\"autotp_size\": 0}", "{\"autotp_size\": 1}"});
}

}  // namespace lockstep::inline v0::zero::internal
