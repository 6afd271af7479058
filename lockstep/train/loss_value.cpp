#include "lockstep/train/loss_value.h"

namespace lockstep {

LossValue::LossValue(const at::Tensor& loss) {
  if (loss.is_cpu())
    value_ = loss.item<double>();
  else
    on_device_ = loss.detach().to(at::kDouble);
}

double LossValue::value() const {
  if (on_device_.defined()) {
    value_ += on_device_.item<double>();
    on_device_.reset();
  }
  return value_;
}

void LossValue::add(const LossValue& other, double factor) {
  value_ += other.value_ * factor;
  if (!other.on_device_.defined()) return;
  const at::Tensor more = factor == 1 ? other.on_device_ : other.on_device_.mul(factor);
  // Not in place: copies of this one share what there was.
  on_device_ = on_device_.defined() ? on_device_.add(more) : more;
}

LossValue LossValue::over(double divisor) const {
  LossValue result(value_ / divisor);
  if (on_device_.defined()) result.on_device_ = on_device_.div(divisor);
  return result;
}

}  // namespace lockstep
