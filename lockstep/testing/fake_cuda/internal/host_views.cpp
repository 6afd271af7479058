#include "lockstep/testing/fake_cuda/internal/host_views.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// A block that stays open meanwhile.
class OpenBlock {
 public:
  explicit OpenBlock(const void* data) : block_(machine().memory.find(data)) {
    if (block_ != nullptr) machine().memory.open(*block_);
  }
  ~OpenBlock() {
    if (block_ != nullptr) machine().memory.close(*block_);
  }
  OpenBlock(const OpenBlock&) = delete;
  OpenBlock& operator=(const OpenBlock&) = delete;

 private:
  Block* block_;
};

void resize_storage(c10::StorageImpl& storage, size_t bytes, int device) {
  c10::DataPtr fresh = [&] {
    const DeviceNow now(device);
    return device_allocator()->allocate(bytes);
  }();
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    const OpenBlock from(storage.data());
    const OpenBlock to(fresh.get());
    std::memcpy(fresh.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

}  // namespace

at::Tensor HostViews::of(const at::Tensor& tensor) {
  for (const Pair& pair : pairs_)
    if (pair.device.is_same(tensor)) return pair.host;
  const c10::Storage& storage = tensor.storage();
  auto it = storages_.find(storage.unsafeGetStorageImpl());
  if (it == storages_.end()) {
    // Resizable, so that an operation may give its output another size.
    const c10::Storage host(
        c10::Storage::use_byte_size_t(), storage.nbytes(),
        c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU)),
        c10::GetCPUAllocator(), true);
    it = storages_.emplace(storage.unsafeGetStorageImpl(), host).first;
  }
  at::Tensor host = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(it->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  host.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  pairs_.push_back({tensor, host});
  return host;
}

at::Tensor HostViews::back(const at::Tensor& result, int device) const {
  if (!result.defined() || !result.device().is_cpu()) return result;
  for (const Pair& pair : pairs_)
    if (pair.host.is_same(result)) return pair.device;
  for (const auto& [storage, host] : storages_) {
    if (host.unsafeGetStorageImpl() != result.storage().unsafeGetStorageImpl()) continue;
    const auto owner = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
      return pair.device.storage().unsafeGetStorageImpl() == storage;
    });
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(owner->device.storage()), owner->device.key_set(),
        result.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                      result.storage_offset());
    return view;
  }
  return copy_to_device(result, device);
}

bool HostViews::holds(const at::Tensor& host) const {
  if (!host.defined() || !host.device().is_cpu()) return true;  // nothing, or not of the host's
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.host.is_same(host); }) ||
         std::any_of(storages_.begin(), storages_.end(), [&](const auto& known) {
           return known.second.unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl();
         });
}

void HostViews::Outgrown::copy() const {
  std::memcpy(to, host.storage().data(), bytes);
}

std::vector<HostViews::Outgrown> HostViews::resize_changed() const {
  std::vector<Outgrown> outgrown;
  for (const auto& [device, host] : pairs_) {
    if (host.sizes() == device.sizes() && host.strides() == device.strides()) continue;
    resize_tensor(device, host.sizes(), host.strides());
    // Where the memory was too small, the results are in the CPU's.
    const c10::Storage& from = host.storage();
    const c10::Storage& to = device.storage();
    if (from.data() == to.data() || host.numel() == 0) continue;
    const OpenBlock open(to.data());
    outgrown.push_back({host, const_cast<void*>(to.data()), std::min(from.nbytes(), to.nbytes())});
    outgrown.back().copy();
  }
  return outgrown;
}

at::Tensor bare_view(const at::Tensor& tensor) {
  return tensor.defined() ? HostViews().of(tensor) : tensor;
}

at::Tensor copy_to_device(const at::Tensor& host, int device) {
  const DeviceNow now(device);
  at::Tensor result = at::detail::empty_strided_generic(
      host.sizes(), host.strides(), device_allocator(), kDeviceKeys, host.scalar_type());
  const size_t bytes = result.storage().nbytes();
  if (bytes > 0 && host.numel() > 0) {
    const OpenBlock open(result.storage().data());
    std::memcpy(const_cast<void*>(result.storage().data()), host.const_data_ptr(), bytes);
  }
  return result;
}

const at::Tensor& resize_tensor(const at::Tensor& self, at::IntArrayRef sizes,
                                at::OptionalIntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto offset = static_cast<size_t>(self.storage_offset());
  if (strides)
    impl->set_sizes_and_strides(sizes, *strides);
  else
    impl->set_sizes_contiguous(sizes);
  const size_t bytes =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.element_size(), offset);
  if (self.numel() > 0 && bytes > self.storage().nbytes())
    resize_storage(*self.storage().unsafeGetStorageImpl(), bytes, self.device().index());
  return self;
}

}  // namespace lockstep::inline v0::testing::fake
