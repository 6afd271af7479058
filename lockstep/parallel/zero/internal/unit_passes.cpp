#include "lockstep/parallel/zero/internal/unit_passes.h"

#include <algorithm>

namespace lockstep::inline v0::internal {

// A forward has no explicit start: it begins after a backward, or where it reaches a unit again.
void UnitPasses::went(size_t unit) {
  const bool again = std::any_of(passes_.begin(), passes_.end(), [&](const Pass& one) {
    return one.unit == unit && one.forward == forwards_;
  });
  if (turned_ || again) ++forwards_;
  turned_ = false;
  passes_.push_back({unit, forwards_});
  ++waiting_[unit];
}

std::vector<size_t> UnitPasses::until(size_t unit) const {
  std::vector<size_t> units;
  if (waiting_[unit] == 0) return {unit};
  for (auto one = passes_.rbegin(); one->unit != unit; ++one) units.push_back(one->unit);
  units.push_back(unit);
  return units;
}

// A backward that has reached no unit belongs to the last forward.
std::vector<size_t> UnitPasses::rest() const {
  std::vector<size_t> units;
  const size_t forward = turned_ ? returning_ : forwards_;
  for (auto one = passes_.rbegin(); one != passes_.rend() && one->forward == forward; ++one)
    units.push_back(one->unit);
  return units;
}

void UnitPasses::pass(size_t unit) {
  turned_ = true;
  passed_[unit] = true;
  if (passes_.empty() || passes_.back().unit != unit) return;
  returning_ = passes_.back().forward;
  --waiting_[unit];
  passes_.pop_back();
}

void UnitPasses::begin_backward() {
  passed_.assign(passed_.size(), false);
}

void UnitPasses::clear() {
  passes_.clear();
  waiting_.assign(waiting_.size(), 0);
  turned_ = true;
}

}  // namespace lockstep::inline v0::internal
