#include "lockstep/parallel/ddp/average_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace lockstep::inline v0 {

void average_gradients(const NamedTensors& parameters, Communicator& comm, AverageOptions options,
                       Communicator::Site site) {
  const at::NoGradGuard no_grad;
  const at::Tensor used = at::zeros({static_cast<int64_t>(parameters.size())}, at::kBool);
  auto* flags = used.mutable_data_ptr<bool>();
  for (size_t i = 0; i < parameters.size(); ++i) flags[i] = parameters[i].second.grad().defined();
  comm.all_reduce(used, ReduceOp::kMax, site);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!flags[i]) continue;
    at::Tensor parameter = parameters[i].second;
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter);
    algorithms::all_reduce(comm, gradient, options.algorithm, ReduceOp::kSum, site);
    gradient.div_(static_cast<double>(comm.size()));
  }
}

}  // namespace lockstep::inline v0
