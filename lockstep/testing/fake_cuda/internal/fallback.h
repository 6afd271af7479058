// The boxed fallback: an operator of a device runs the CPU's kernel on the same memory. Not a
// public header.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

// What `work` computes on the host, in new memory of the device; a replay computes it again.
std::vector<at::Tensor> results_of(const Launch& launch, int device,
                                   const std::function<std::vector<at::Tensor>()>& work);

// Kernels call other operators on views of the CPU's: no autograd, no autocast, no views recorded.
class PlainKernels {
 public:
  PlainKernels();
  ~PlainKernels();
  PlainKernels(const PlainKernels&) = delete;
  PlainKernels& operator=(const PlainKernels&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard autograd_;
  c10::impl::ExcludeDispatchKeyGuard autocast_;
};

}  // namespace lockstep::inline v0::testing::fake
