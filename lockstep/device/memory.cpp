#include "lockstep/device/memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "lockstep/device/internal/guard.h"

namespace lockstep::inline v0::device {
namespace {

// Returns nullptr if no memory was ever allocated there.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

using internal::OnDevice;

}  // namespace

std::optional<MemoryUse> memory_use(c10::Device device) {
  const c10::Device one = internal::numbered(device);
  if (one.is_cpu()) return std::nullopt;
  c10::DeviceAllocator* allocator = allocator_of(one);
  if (allocator == nullptr) return MemoryUse{};
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(one.index());
  return MemoryUse{.in_use = stats.allocated_bytes[kAll].current,
                   .peak = stats.allocated_bytes[kAll].peak,
                   .reserved = stats.reserved_bytes[kAll].current};
}

void reset_peak_memory(c10::Device device) {
  const c10::Device one = internal::numbered(device);
  if (one.is_cpu()) return;
  if (c10::DeviceAllocator* allocator = allocator_of(one)) allocator->resetPeakStats(one.index());
}

at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  const c10::Device one = internal::numbered(device);
  const OnDevice on(one);
  return at::empty(sizes, at::TensorOptions().dtype(dtype).pinned_memory(!one.is_cpu()));
}

at::Tensor empty_pinned_like(const at::Tensor& tensor) {
  const OnDevice on(tensor.device());
  return at::empty_strided(
      tensor.sizes(), tensor.strides(),
      at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(!tensor.is_cpu()));
}

at::Tensor copy_to(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu() || !host.is_cpu()) return host.to(device);
  // The allocator keeps the pinned memory until the copy has ended.
  return empty_pinned(host.sizes(), host.scalar_type(), device)
      .copy_(host)
      .to(device, /*non_blocking=*/true);
}

}  // namespace lockstep::inline v0::device
