// DeviceScalar: a number such as a loss, or a sum of some, which may still be on the device that
// computes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Reading one that is on a device makes the host wait, so a loop adds up losses by add() and reads
// them where it logs. On the CPU it is a double throughout. A value, used by one thread at a
// time.
class LOCKSTEP_API DeviceScalar {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a number is one.
  DeviceScalar(double value = 0) : value_(value) {}
  // A tensor of one element. On the CPU it is read at once; on a device it stays there and must not
  // be changed.
  explicit DeviceScalar(const at::Tensor& scalar);

  // The host waits for the device, the first time.
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): for callers that want the number.
  operator double() const { return value(); }
  // Whether value() waits for a device.
  bool on_device() const { return on_device_.defined(); }

  // Adds `other` times `factor`. The host does not wait.
  void add(const DeviceScalar& other, double factor);
  DeviceScalar over(double divisor) const;

 private:
  mutable double value_ = 0;      // with nothing on a device, all of it
  mutable at::Tensor on_device_;  // float64, to be added
};

}  // namespace lockstep::inline v0
