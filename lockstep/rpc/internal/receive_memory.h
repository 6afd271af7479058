// ReceiveMemory: storage for tensors that arrive over links. Not a public header.
//
// A page that was never written costs a fault, more than the copy into it. Large storages that
// their tensors have released are therefore kept, and the next tensor of about that size finds its
// pages warm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <list>
#include <memory>

#include "lockstep/core/mutex.h"
#include "lockstep/core/pages.h"

namespace lockstep::inline v0::rpc::internal {

// Tensors may outlive the caller; the memory lives as long as they do.
// Thread-safety: any thread.
class ReceiveMemory : public std::enable_shared_from_this<ReceiveMemory> {
 public:
  // A storage is kept from this many bytes on.
  static constexpr size_t kLarge = size_t{256} << 10;

  // Keeps at most `kept_bytes` of unused storage; the oldest is freed first.
  static std::shared_ptr<ReceiveMemory> make(size_t kept_bytes);

  // A contiguous tensor of `bytes` bytes, not initialised. Throws the allocator's error where there
  // is no memory.
  at::Tensor tensor(at::ScalarType dtype, at::IntArrayRef sizes, size_t bytes);
  // The unused bytes that are kept.
  size_t kept() const;

 private:
  explicit ReceiveMemory(size_t kept_bytes) : most_(kept_bytes) {}
  struct Loan;
  std::unique_ptr<PageMemory> take(size_t bytes);
  void give_back(std::unique_ptr<PageMemory> memory) noexcept;

  const size_t most_;
  mutable Mutex mutex_;
  std::list<std::unique_ptr<PageMemory>> free_ LOCKSTEP_GUARDED_BY(mutex_);  // the newest first
  size_t kept_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::inline v0::rpc::internal
