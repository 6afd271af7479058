// StepSpec: the settings of every step of a training, as a value: the optimizer, the schedule of
// its learning rate, the precision, clipping and accumulation. TrainingArguments, the recipes'
// configuration and DeepSpeed's JSON are spellings of it, and each has a spec_of(). No libtorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/warmup_schedule.h"

namespace lockstep::inline v0::optim {

// Selects parameters that have no weight decay.
struct NoDecay {
  bool biases = true;  // whose last part of the name contains "bias": "fc.bias", "in_proj_bias"
  // Every parameter that belongs directly to a module whose type's name ends in "Norm" or
  // "Norm<digit>d" (ignoring "Impl"): torch's LayerNorm, BatchNorm1d/2d/3d, GroupNorm,
  // InstanceNorm1d/2d/3d, Lockstep's SyncBatchNorm, a user's RmsNorm.
  bool norms = true;
  bool one_dimensional = false;         // every parameter of at most one dimension
  std::vector<std::string> names = {};  // whose name contains one of these, e.g. "embeddings"

  bool operator==(const NoDecay&) const = default;
};

// The optimizers that a specification can name.
enum class OptimizerType : uint8_t { kAdam, kAdamW, kSgd };

// Fields that a type does not have keep their defaults.
struct OptimizerSpec {
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
  // The parameters that weight decay leaves out: none.
  NoDecay no_decay = {.biases = false, .norms = false};

  bool operator==(const OptimizerSpec&) const = default;
};

// The schedule of the learning rate, which starts from the optimizer's.
struct ScheduleSpec {
  std::string name = "constant";  // "constant", "linear", "cosine": schedule.h
  // The warm-up, in which the rate rises from 0, has the length of the first of these that is not
  // 0.
  int64_t warmup_steps = 0;
  double warmup_epochs = 0;  // rounded to whole steps
  double warmup_ratio = 0;   // of all steps
  // One of DeepSpeed's schedules, in place of all of the above.
  std::optional<WarmupSchedule> deepspeed = std::nullopt;

  bool operator==(const ScheduleSpec&) const = default;
};

// The precision of forward's computation. Parameters, gradients and the optimizer's state stay
// float32.
enum class Precision : uint8_t { kFloat32, kBFloat16, kFloat16 };

struct StepSpec {
  OptimizerSpec optimizer = {};
  ScheduleSpec schedule = {};
  Precision precision = Precision::kFloat32;
  double max_norm = 0;       // the largest global norm of the gradients; 0: unlimited
  int64_t accumulation = 1;  // batches of a rank that make one step

  bool operator==(const StepSpec&) const = default;
};

// The learning rate of each step, counted from 0, of a run of `total_steps` whose epochs have
// `steps_per_epoch` steps.
// Throws: InvalidArgument for a schedule that there is not, or that such a run cannot have.
LOCKSTEP_API std::function<double(int64_t step)> rates_of(const StepSpec& spec, int64_t total_steps,
                                                          int64_t steps_per_epoch);

}  // namespace lockstep::inline v0::optim
