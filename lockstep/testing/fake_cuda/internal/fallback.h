// The boxed fallback: an operator of a device runs the CPU's kernel on the same memory. Not a
// public header.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::testing::fake {

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

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

}  // namespace lockstep::testing::fake
