// A model's tensors without repetitions.
#pragma once

#include <unordered_set>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// Each tensor once, under its first name: a tied parameter has several.
inline NamedTensors distinct_tensors(const NamedTensors& tensors) {
  NamedTensors once;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors)
    if (seen.insert(item.second.unsafeGetTensorImpl()).second) once.push_back(item);
  return once;
}

}  // namespace lockstep::inline v0
