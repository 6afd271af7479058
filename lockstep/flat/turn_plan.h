// Decides how many buckets take turns with few buffers. Pure.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/flat/bucket_plan.h"

namespace lockstep::inline v0::flat {

struct TurnPlan {
  struct Turn {
    size_t buffer = 0;
    // The bucket that must have released the buffer; nullopt: this one is the first.
    std::optional<size_t> after = std::nullopt;
  };
  std::vector<TensorSpec> buffers;  // each as large as the largest bucket that takes it
  std::vector<Turn> turns;          // one per bucket, in the buckets' order
};

// At most `each` buffers for the buckets of one dtype and device.
// Throws: InvalidArgument for 0.
TurnPlan plan_turns(std::span<const TensorSpec> buckets, size_t each);

}  // namespace lockstep::inline v0::flat
