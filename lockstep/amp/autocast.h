// Autocast: during the guard's lifetime, operations that gain from it run in 16 bits, and those
// that need the range stay in float32. Like torch.autocast.
//
//   {
//     const amp::Autocast autocast(at::kCPU, at::kBFloat16);
//     loss = criterion(model->forward(x), y);
//   }
//   loss.backward();  // outside: backward runs each operation in the type that its forward chose
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/core/export.h"
#include "lockstep/flat/nested.h"

namespace lockstep::inline v0::amp {

// The autocast settings of one kind of device.
struct AutocastSettings {
  at::DeviceType device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  // Keeps the casts of parameters until the outermost guard ends, so that a weight that is used
  // twice is cast once. Without it, changes to a weight during the guard take effect.
  bool cache = true;
};

// The settings of the calling thread. Threads that it starts do not inherit them: pass these
// settings to the thread and make a guard of them there.
LOCKSTEP_API AutocastSettings current_autocast(at::DeviceType device);

// Sets the settings for the calling thread, and restores the previous ones on destruction, also
// after an exception. Guards nest; one with enabled = false gives a scope of full precision. Guards
// must be destroyed on the thread that made them, in reverse order.
class LOCKSTEP_API Autocast {
 public:
  // Throws InvalidArgument unless the device is the CPU or CUDA and the dtype float16 or bfloat16.
  explicit Autocast(const AutocastSettings& settings);
  Autocast(at::DeviceType device, at::ScalarType dtype, bool enabled = true)
      : Autocast(AutocastSettings{.device = device, .dtype = dtype, .enabled = enabled}) {}
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastSettings before_;
};

// Converts a 16-bit tensor to float32, in its place; other tensors stay.
LOCKSTEP_API void widen_tensor(at::Tensor& tensor);

// The same for every tensor of an output (flat/nested.h), so that the loss is computed in float32.
template <typename T>
void widen(T& output) {
  flat::for_each_tensor(output, widen_tensor);
}

}  // namespace lockstep::inline v0::amp
