#include "lockstep/model/internal/arithmetic.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/model/internal/heads.h"

namespace lockstep::inline v0::internal {

Arithmetic arithmetic_for(const at::Tensor& parameter) {
  if (!parameter.is_cpu() || parameter.scalar_type() != at::kFloat) return Arithmetic::kComposed;
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return Arithmetic::kFloat32;
  return at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16 && has_heads(at::kBFloat16)
             ? Arithmetic::kBFloat16
             : Arithmetic::kComposed;
}

c10::impl::ExcludeDispatchKeyGuard without_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

void refuse_second_gradient(const char* model) {
  if (at::GradMode::is_enabled())
    throw InvalidArgument(std::string(model) +
                          ": a gradient of the gradient is not computed; call backward without "
                          "create_graph");
}

}  // namespace lockstep::inline v0::internal
