// ZeroConfig: what a DeepSpeed-style JSON says, as a value. No libtorch.
//
//   { "train_micro_batch_size_per_gpu": 32,
//     "optimizer": { "type": "Adam", "params": { "lr": 1e-4 } } }
//
// Names, defaults and meanings are those of DeepSpeed (its configuration page, and release 0.19's
// behaviour where that page is silent), but for what docs/zero.md lists. All of DeepSpeed's keys
// are known: those that only tune speed or logging there are read over, those that ask for
// something that is not here are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/parallel/zero/loss_scaler.h"
#include "lockstep/parallel/zero/zero_schedule.h"

namespace lockstep::zero {

enum class OptimizerType : uint8_t { kAdam, kAdamW, kSgd };

// The fields that a type does not have keep their defaults.
struct OptimizerConfig {
  // DeepSpeed's "Adam" is AdamW too, unless "adam_w_mode" is false.
  OptimizerType type = OptimizerType::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;  // Adam, AdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  bool amsgrad = false;
  double weight_decay = 0;
  double momentum = 0;  // SGD
  double dampening = 0;
  bool nesterov = false;

  bool operator==(const OptimizerConfig&) const = default;
};

// What forward computes in. Parameters, gradients and the optimizer's state stay float32; those of a model that
// has been converted to 16 bits stay that, with float32 masters and state in the optimizer.
enum class Precision : uint8_t { kFloat32, kBFloat16, kFloat16 };

struct ZeroConfig {
  // Samples. 0: not given; resolved() fills all three in.
  int64_t train_batch_size = 0;             // of all ranks, a step of the optimizer
  int64_t train_micro_batch_size = 0;       // of one rank, a forward
  int64_t gradient_accumulation_steps = 0;  // forwards of one rank, a step of the optimizer
  std::optional<OptimizerConfig> optimizer = std::nullopt;
  std::optional<ScheduleConfig> scheduler = std::nullopt;
  Precision precision = Precision::kFloat32;
  LossScaleConfig loss_scale = {};   // float16 only
  double gradient_clipping = 0;      // the largest global norm of the gradients; 0: any
  int stage = 0;                     // what ZeRO divides: ZeroOptions::stage
  std::string state_directory = {};  // offload_optimizer's nvme_path; "": state is in memory
  bool overlap_comm = true;          // gradients are reduced while backward goes on
  int64_t reduce_bucket_size = 500'000'000;  // elements at which a bucket is full
  // What becomes of a parameter that no rank used: its gradient counts as zero, or (false) it is
  // named in an error.
  bool ignore_unused_parameters = true;

  bool operator==(const ZeroConfig&) const = default;
};

// Throws InvalidArgument of one line that begins with `source`: not JSON (comments are), a key
// twice, an unknown key (with the nearest known one), a value of another type or out of range, a
// setting that is not here. What depends on the number of ranks is resolved()'s matter.
ZeroConfig zero_config_from_json(const std::string& text, const std::string& source);
// The same of a file. Throws InvalidArgument if it cannot be read as well.
ZeroConfig load_zero_config(const std::string& path);

// JSON that gives the same configuration again.
std::string to_json(const ZeroConfig& config);

// The configuration for `world_size` ranks: batch sizes filled in. One of them suffices, and
// accumulation is 1 step unless given or implied. Throws InvalidArgument: batch sizes that contradict
// each other (with the arithmetic), none at all, no optimizer.
ZeroConfig resolved(const ZeroConfig& config, int world_size);

}  // namespace lockstep::zero
