#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>

#include <string>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::amp {
namespace {

void apply(const AutocastSettings& settings) {
  at::autocast::set_autocast_enabled(settings.device, settings.enabled);
  at::autocast::set_autocast_dtype(settings.device, settings.dtype);
  at::autocast::set_autocast_cache_enabled(settings.cache);
}

}  // namespace

AutocastSettings current_autocast(at::DeviceType device) {
  return {.device = device,
          .dtype = at::autocast::get_autocast_dtype(device),
          .enabled = at::autocast::is_autocast_enabled(device),
          .cache = at::autocast::is_autocast_cache_enabled()};
}

Autocast::Autocast(const AutocastSettings& settings) {
  if (settings.device != at::kCPU && settings.device != at::kCUDA) {
    throw InvalidArgument("autocast is for CPU and CUDA, not " +
                          c10::DeviceTypeName(settings.device, /*lower_case=*/true));
  }
  if (settings.dtype != at::kHalf && settings.dtype != at::kBFloat16) {
    throw InvalidArgument(std::string("autocast computes in float16 or bfloat16, not ") +
                          dtype_name(settings.dtype));
  }
  before_ = current_autocast(settings.device);
  at::autocast::increment_nesting();
  apply(settings);
}

void widen_tensor(at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16)
    tensor = tensor.to(at::kFloat);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  apply(before_);
}

}  // namespace lockstep::inline v0::amp
