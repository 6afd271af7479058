#include "lockstep/gpu_check/ceilings.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <limits>

#include "lockstep/device/memory.h"
#include "lockstep/device/timer.h"

namespace lockstep::inline v0::gpu_check {

double best_seconds(c10::Device device, const std::function<void()>& work, int tries) {
  work();  // what is loaded and chosen at first use
  device::DeviceTimer timer(device);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    timer.start();
    work();
    timer.stop();
    best = std::min(best, timer.wait());
  }
  return best;
}

double matmul_ceiling(c10::Device device, c10::ScalarType dtype, int64_t side) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  const at::Tensor a = at::randn({side, side}, options), b = at::randn({side, side}, options);
  at::Tensor c = at::empty({side, side}, options);
  constexpr int kProducts = 10;  // in a row, as long as a clock's resolution asks for
  const double seconds = best_seconds(device, [&] {
    for (int i = 0; i < kProducts; ++i) at::mm_out(c, a, b);
  });
  const auto n = static_cast<double>(side);
  return 2 * n * n * n * kProducts / seconds;
}

double copy_ceiling(c10::Device device, int64_t bytes) {
  const auto options = at::TensorOptions(device).dtype(at::kByte);
  const at::Tensor from = at::empty({bytes}, options).fill_(1), to = at::empty({bytes}, options);
  return 2.0 * static_cast<double>(bytes) / best_seconds(device, [&] { to.copy_(from); });
}

double pinned_copy(c10::Device device, int64_t bytes, bool to_device) {
  const at::Tensor host = device::empty_pinned({bytes}, at::kByte, device).fill_(1);
  const at::Tensor there = at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)).fill_(1);
  const double seconds = best_seconds(device, [&] {
    if (to_device)
      there.copy_(host, /*non_blocking=*/true);
    else
      host.copy_(there, /*non_blocking=*/true);
  });
  return static_cast<double>(bytes) / seconds;
}

}  // namespace lockstep::inline v0::gpu_check
