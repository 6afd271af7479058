// The differences between two sets of named tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::engine {

// A tensor that differs, or is on one side only.
struct TensorDifference {
  std::string name;
  enum class Kind { kMissingInA, kMissingInB, kShape, kDtype, kValues } kind = Kind::kValues;
  std::string a, b;  // kShape, kDtype: each side's
  // For kValues, and for kDtype with equal shapes:
  int64_t elements = 0;
  int64_t different = 0;  // elements
  double max_abs = 0;     // greatest |a - b|; infinite where one is NaN or infinite
  double max_rel = 0;     // greatest |a - b| / max(|a|, |b|)
};

struct TensorsDiff {
  int64_t compared = 0;                       // tensors that both have
  std::vector<TensorDifference> differences;  // by name
  double max_abs = 0, max_rel = 0;
};

// Values are equal if |a - b| <= tolerance * max(1, |a|, |b|), or both are NaN. Tensors may have
// any strides and dtypes.
// Cost: a few megabytes of memory beside the tensors.
TensorsDiff diff_tensors(const NamedTensors& a, const NamedTensors& b, double tolerance);

// The kind in a word: "missing_in_a", "missing_in_b", "shape", "dtype", "values".
const char* to_string(TensorDifference::Kind kind);

}  // namespace lockstep::inline v0::engine
