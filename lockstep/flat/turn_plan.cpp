#include "lockstep/flat/turn_plan.h"

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat {
namespace {

bool alike(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.device == b.device;
}

}  // namespace

TurnPlan plan_turns(std::span<const TensorSpec> buckets, size_t each) {
  if (each == 0) throw InvalidArgument("buckets cannot take turns with no buffer at all");
  struct Kind {
    TensorSpec spec;
    std::vector<size_t> buffers = {};  // by turn
    std::vector<size_t> takers = {};   // the latest taker of each buffer
    size_t count = 0;
  };
  std::vector<Kind> kinds;
  TurnPlan plan;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const TensorSpec& bucket = buckets[i];
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& one) { return alike(one.spec, bucket); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), Kind{.spec = bucket});
    const size_t place = kind->count++ % each;
    TurnPlan::Turn turn;
    if (place == kind->buffers.size()) {
      kind->buffers.push_back(plan.buffers.size());
      kind->takers.push_back(i);
      plan.buffers.push_back(bucket);
    } else {
      turn.after = kind->takers[place];
      kind->takers[place] = i;
    }
    turn.buffer = kind->buffers[place];
    TensorSpec& buffer = plan.buffers[turn.buffer];
    buffer.numel = std::max(buffer.numel, bucket.numel);
    plan.turns.push_back(turn);
  }
  return plan;
}

}  // namespace lockstep::inline v0::flat
