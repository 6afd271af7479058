#include "lockstep/train/device_scalar.h"

namespace lockstep::inline v0 {

DeviceScalar::DeviceScalar(const at::Tensor& scalar) {
  if (scalar.is_cpu())
    value_ = scalar.item<double>();
  else
    on_device_ = scalar.detach().to(at::kDouble).view(at::IntArrayRef());
}

double DeviceScalar::value() const {
  if (on_device_.defined()) {
    value_ += on_device_.item<double>();
    on_device_.reset();
  }
  return value_;
}

void DeviceScalar::add(const DeviceScalar& other, double factor) {
  value_ += other.value_ * factor;
  if (!other.on_device_.defined()) return;
  const at::Tensor more = factor == 1 ? other.on_device_ : other.on_device_.mul(factor);
  // Not in place: copies of this one share what there was.
  on_device_ = on_device_.defined() ? on_device_.add(more) : more;
}

DeviceScalar DeviceScalar::over(double divisor) const {
  DeviceScalar result(value_ / divisor);
  if (on_device_.defined()) result.on_device_ = on_device_.div(divisor);
  return result;
}

}  // namespace lockstep::inline v0
