#include "lockstep/rpc/internal/receive_memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <utility>
#include <vector>

namespace lockstep::inline v0::rpc::internal {
namespace {

// Granularity of storages, so that nearly equal tensors can reuse one.
constexpr size_t kStep = size_t{64} << 10;

}  // namespace

struct ReceiveMemory::Loan {
  std::shared_ptr<ReceiveMemory> owner;
  std::unique_ptr<PageMemory> memory;
};

std::shared_ptr<ReceiveMemory> ReceiveMemory::make(size_t kept_bytes) {
  return std::shared_ptr<ReceiveMemory>(new ReceiveMemory(kept_bytes));
}

at::Tensor ReceiveMemory::tensor(at::ScalarType dtype, at::IntArrayRef sizes, size_t bytes) {
  if (bytes < kLarge) return at::detail::empty_cpu(sizes, dtype);
  auto loan = std::make_unique<Loan>();
  loan->memory = take((bytes + kStep - 1) / kStep * kStep);
  loan->owner = shared_from_this();
  void* const data = loan->memory->data();
  c10::DataPtr pointer(
      data, loan.release(),
      [](void* given) {
        const std::unique_ptr<Loan> back(static_cast<Loan*>(given));
        back->owner->give_back(std::move(back->memory));
      },
      at::Device(at::kCPU));
  // The allocator is for users who enlarge the tensor.
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(pointer), c10::GetCPUAllocator(),
                                                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

size_t ReceiveMemory::kept() const {
  MutexLock lock(mutex_);
  return kept_;
}

std::unique_ptr<PageMemory> ReceiveMemory::take(size_t bytes) {
  {
    MutexLock lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const size_t have = (*it)->bytes();
      if (have < bytes || have > 2 * bytes) continue;
      if (best == free_.end() || have < (*best)->bytes()) best = it;
    }
    if (best != free_.end()) {
      auto memory = std::move(*best);
      free_.erase(best);
      kept_ -= memory->bytes();
      return memory;
    }
  }
  return std::make_unique<PageMemory>(bytes);
}

void ReceiveMemory::give_back(std::unique_ptr<PageMemory> memory) noexcept {
  std::vector<std::unique_ptr<PageMemory>> gone;  // freed without the lock
  const size_t bytes = memory->bytes();
  if (bytes > most_) return;
  MutexLock lock(mutex_);
  while (kept_ + bytes > most_) {
    kept_ -= free_.back()->bytes();
    gone.push_back(std::move(free_.back()));
    free_.pop_back();
  }
  free_.push_front(std::move(memory));
  kept_ += bytes;
  lock.unlock();
}

}  // namespace lockstep::inline v0::rpc::internal
