// The CPU allocator of libtorch, wrapped so that an allocation can be given memory of ours. Not used
// directly: see birthplaces.h.
//
// libtorch has one CPU allocator a process (c10::SetCPUAllocator) and no other way to say where an
// operator's result is to lie. The wrapper passes everything on to the allocator that it found,
// but on threads that watch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::flat::internal {

// Memory that can be lent to one tensor at a time.
struct Place {
  explicit Place(at::Tensor memory) : tensor(std::move(memory)) {}
  at::Tensor tensor;  // keeps the memory while it is lent, whoever else is gone
  std::atomic<bool> lent{false};
};

// What a thread's allocations are shown to. One thread at a time.
class AllocationWatch {
 public:
  virtual ~AllocationWatch() = default;
  // Whether allocations of so many bytes are of interest.
  virtual bool wants(size_t bytes) const = 0;
  // Where the next one is to lie; null: wherever the allocator likes.
  virtual std::shared_ptr<Place> place(size_t bytes) = 0;
  virtual void allocated(size_t bytes, const void* memory) = 0;

 private:
  friend class ThreadWatchers;
  std::atomic<uint64_t> turn_{0};  // odd while a thread is watched
};

// Puts the wrapper before libtorch's allocator, once a process. Whoever replaces it later ends its
// work, and nothing else.
void install_placing_allocator();

// Memory that is shown to nobody: it is not backward's own.
c10::DataPtr allocate_unseen(size_t bytes);

// Shows this thread's allocations to `watch` until unwatch() is called, here or on another thread.
// Several may watch one thread; the first that has a place gives it.
void watch(const std::shared_ptr<AllocationWatch>& watch);
void unwatch(AllocationWatch& watch) noexcept;
// Whether this thread's allocations are shown to it.
bool watches_this_thread(const AllocationWatch& watch) noexcept;

}  // namespace lockstep::flat::internal
