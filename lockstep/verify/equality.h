// Tests whether a language model that is divided among ranks equals that of one process: both train
// from the same values on the same batches, and their results are compared. Ranks are threads of
// this process.
//
//   const EqualityRun one = train_whole(model, options);
//   const EqualityResult result = compare(train_divided(model, product, options), one);
//   result.parameters;  // the largest difference of a parameter, relative to its largest value
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/products/parallelism.h"

namespace lockstep::inline v0 {

// How both trainings train.
struct EqualityOptions {
  int64_t steps = 20;  // with clipping
  // With kFloat the models' fused nodes compute.
  at::ScalarType dtype = at::kDouble;
  // AdamW, or else SGD with momentum. Adam moves a weight whose gradient is only rounding as far as
  // any other; in float32 two orders of one sum therefore differ by 1e-4 after twenty steps, also
  // in one process.
  bool adam = true;
};

// The values of a training at each step and at its end.
struct EqualityRun {
  std::vector<double> losses;  // each step's, the mean over all rows
  std::vector<double> norms;   // of the gradients, before clipping
  double evaluated = 0;        // the loss of one more batch, in evaluation mode
  std::map<std::string, at::Tensor> parameters;
};

// Trains TransformerLm in this process with torch's optimizers and clip_grad_norm_. Values and
// batches are computed from names and numbers; nothing is drawn at random.
LOCKSTEP_API EqualityRun train_whole(const LmConfig& config, const EqualityOptions& options = {});
// Trains ParallelLm on `ranks` threads.
// Throws: as ParallelLm.
LOCKSTEP_API EqualityRun train_divided(const LmConfig& config, const Parallelism& how, int ranks,
                                       const EqualityOptions& options = {});

// The largest relative differences.
struct LOCKSTEP_API EqualityResult {
  double losses = 0, norms = 0, evaluated = 0, parameters = 0;
  std::string worst;    // the parameter that differs most
  double most() const;  // the largest of all
};
// How far a run is from what was expected.
LOCKSTEP_API EqualityResult compare(const EqualityRun& run, const EqualityRun& expected);
// Whether the two are equal in every bit.
LOCKSTEP_API bool same_bits(const EqualityRun& a, const EqualityRun& b);

}  // namespace lockstep::inline v0
