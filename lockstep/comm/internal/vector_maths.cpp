#include "lockstep/comm/internal/vector_maths.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

namespace lockstep::inline v0 {

void settle_vector_maths() {
  // All of MKL's vector functions share what the first one detects.
  static const bool settled = [] {
    const at::NoGradGuard no_grad;
    at::sin(at::zeros({1}, at::TensorOptions(at::kFloat).device(at::kCPU)));
    return true;
  }();
  (void)settled;
}

}  // namespace lockstep::inline v0
