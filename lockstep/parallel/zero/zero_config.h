// ZeroConfig: a DeepSpeed-style JSON as a value. No libtorch.
//
//   { "train_micro_batch_size_per_gpu": 32,
//     "optimizer": { "type": "Adam", "params": { "lr": 1e-4 } } }
//
// Names, defaults and meanings are those of DeepSpeed (its configuration page, and release 0.19's
// behaviour where that page is silent), except where docs/zero.md says otherwise. All of
// DeepSpeed's keys are known: keys that only tune speed or logging there are ignored, and keys of
// features that are not supported here are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/optim/step_spec.h"
#include "lockstep/parallel/zero/loss_scaler.h"

namespace lockstep::inline v0::zero {

struct ZeroConfig {
  // In samples. 0: not given; resolved() fills in all three.
  int64_t train_batch_size = 0;             // of all ranks, per step of the optimizer
  int64_t train_micro_batch_size = 0;       // of one rank, per forward
  int64_t gradient_accumulation_steps = 0;  // forwards of one rank per step of the optimizer
  // DeepSpeed's "Adam" is also AdamW, unless "adam_w_mode" is false.
  std::optional<optim::OptimizerSpec> optimizer = std::nullopt;
  std::optional<optim::WarmupSchedule> scheduler = std::nullopt;
  // The parameters of a model that has been converted to 16 bits stay 16-bit, with float32 masters
  // and state in the optimizer.
  optim::Precision precision = optim::Precision::kFloat32;
  LossScaleConfig loss_scale = {};   // float16 only
  double gradient_clipping = 0;      // the largest global norm of the gradients; 0: unlimited
  int stage = 0;                     // ZeroOptions::stage
  std::string state_directory = {};  // offload_optimizer's nvme_path; "": state is in memory
  bool overlap_comm = true;          // gradients are reduced while backward runs
  int64_t reduce_bucket_size = 500'000'000;  // elements at which a bucket is full
  // Treatment of a parameter that no rank used: true: its gradient counts as zero; false: an error
  // names it.
  bool ignore_unused_parameters = true;

  bool operator==(const ZeroConfig&) const = default;
};

// Throws a one-line InvalidArgument that begins with `source`: not JSON (comments are allowed), a
// key twice, an unknown key (with the nearest known one), a value of another type or out of range,
// an unsupported setting. resolved() makes the checks that depend on the number of ranks.
LOCKSTEP_API ZeroConfig zero_config_from_json(const std::string& text, const std::string& source);
// The same for a file.
// Throws: InvalidArgument also if it cannot be read.
LOCKSTEP_API ZeroConfig load_zero_config(const std::string& path);

// JSON that gives the same configuration.
LOCKSTEP_API std::string to_json(const ZeroConfig& config);

// The configuration for `world_size` ranks, with the batch sizes filled in. One of them suffices;
// accumulation is 1 step unless given or implied.
// Throws: InvalidArgument for contradictory batch sizes (with the arithmetic), no batch size at
// all, or no optimizer.
LOCKSTEP_API ZeroConfig resolved(const ZeroConfig& config, int world_size);

// The StepSpec of a resolved configuration.
LOCKSTEP_API optim::StepSpec spec_of(const ZeroConfig& config);

}  // namespace lockstep::inline v0::zero
