#include "lockstep/train/stop_agreement.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace lockstep::inline v0 {

void StopCadence::looked(double seconds) {
  // The first step is slow, and says little of the others: more at a time, but not all at once.
  constexpr int64_t kGrowth = 8, kMost = int64_t{1} << 20;
  const double of_a_step = seconds / static_cast<double>(std::max<int64_t>(steps_, 1));
  const double fit = of_a_step > 0 ? kSeconds / of_a_step : static_cast<double>(kMost);
  const int64_t most = std::min(kMost, every_ * kGrowth);
  every_ = std::max<int64_t>(1, static_cast<int64_t>(std::min(fit, static_cast<double>(most))));
  steps_ = 0;
}

StopAgreement::StopAgreement(Communicator comm, std::function<int()> told, Clock clock)
    : comm_(std::move(comm)),
      told_(std::move(told)),
      clock_(std::move(clock)),
      looked_at_(clock_()) {}

int StopAgreement::after_step() {
  if (!cadence_.step()) return 0;
  const auto now = clock_();
  const at::Tensor most = at::empty({2}, at::kDouble);
  double* values = most.mutable_data_ptr<double>();
  values[0] = told_();
  values[1] = std::chrono::duration<double>(now - looked_at_).count();
  comm_.all_reduce(most, ReduceOp::kMax);
  cadence_.looked(values[1]);
  looked_at_ = now;
  return static_cast<int>(values[0]);
}

}  // namespace lockstep::inline v0
