// Autocast: operations that gain from it run in 16 bits, those that need the range stay in float32,
// for as long as the guard lives. As torch.autocast.
//
//   {
//     const amp::Autocast autocast(at::kCPU, at::kBFloat16);
//     loss = criterion(model->forward(x), y);
//   }
//   loss.backward();  // outside: backward runs each operation in the type that its forward chose
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/flat/nested.h"

namespace lockstep::amp {

// What autocast does on one kind of device.
struct AutocastSettings {
  at::DeviceType device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  // Casts of parameters are kept until the outermost guard ends, so that a weight that is used
  // twice is cast once. Without it, a weight that changes under the guard is seen.
  bool cache = true;
};

// The settings of the calling thread. They do not pass to threads that it starts: give them this,
// and let them make a guard of it.
AutocastSettings current_autocast(at::DeviceType device);

// Sets them for the calling thread, and what they were before when it ends, also by an exception.
// Guards nest; one with enabled = false makes an island of full precision. Must end on the thread
// and in the reverse order in which they were made.
class Autocast {
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

// A tensor of 16 bits as float32, in its place; any other stays.
void widen_tensor(at::Tensor& tensor);

// The same for every tensor of an output (flat/nested.h), so that a loss is computed in float32.
template <typename T>
void widen(T& output) {
  flat::for_each_tensor(output, widen_tensor);
}

}  // namespace lockstep::amp
