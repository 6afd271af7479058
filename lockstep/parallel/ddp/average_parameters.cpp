#include "lockstep/parallel/ddp/average_parameters.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <vector>

#include "lockstep/comm/coalesced.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void average_parameters(const NamedTensors& parameters, Communicator& comm,
                        Communicator::Site site) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter.detach());
  all_reduce_coalesced(comm, tensors, ReduceOp::kAvg, site);
}

PeriodicAverager::PeriodicAverager(Communicator comm, int64_t period, int64_t warmup)
    : comm_(std::move(comm)), period_(period), warmup_(warmup) {
  if (period < 1 || warmup < 0) {
    throw InvalidArgument("PeriodicAverager: the period is " + std::to_string(period) +
                          " steps after " + std::to_string(warmup) +
                          " of warm-up; give 1 or more, and 0 or more");
  }
}

bool PeriodicAverager::due() {
  ++steps_;
  return steps_ <= warmup_ || (steps_ - warmup_) % period_ == 0;
}

}  // namespace lockstep::inline v0
