// libtorch's CPU allocator, wrapped so that an allocation can be given chosen memory. Not used
// directly: see gradient_placement.h.
//
// libtorch has one CPU allocator per process (c10::SetCPUAllocator) and no other way to choose
// where an operator's result lies. The wrapper passes everything on to the previous allocator,
// except on watched threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::inline v0::flat::internal {

// Memory that can be lent to one tensor at a time.
struct Place {
  explicit Place(at::Tensor memory) : tensor(std::move(memory)) {}
  at::Tensor tensor;  // keeps the memory while it is lent, even if all other owners are gone
  std::atomic<bool> lent{false};
};

// Observes a thread's allocations.
// Thread-safety: one thread at a time.
class AllocationWatch {
 public:
  virtual ~AllocationWatch() = default;
  // Whether allocations of this size are of interest.
  virtual bool wants(size_t bytes) const = 0;
  // The place of the next one; null: the allocator's choice.
  virtual std::shared_ptr<Place> place(size_t bytes) = 0;
  virtual void allocated(size_t bytes, const void* memory) = 0;

 private:
  friend class ThreadWatchers;
  std::atomic<uint64_t> turn_{0};  // odd while it watches a thread
};

// Installs the wrapper around libtorch's allocator, once per process. A later replacement of the
// allocator ends its effect, and nothing else.
void install_placing_allocator();

// Allocates memory that no watch sees, since it is not backward's own.
c10::DataPtr allocate_unseen(size_t bytes);

// Shows this thread's allocations to `watch` until unwatch() is called, here or on another thread.
// A thread may have several; the first that has a place gives it.
void watch(const std::shared_ptr<AllocationWatch>& watch);
void unwatch(AllocationWatch& watch) noexcept;
// Whether `watch` sees this thread's allocations.
bool watches_this_thread(const AllocationWatch& watch) noexcept;

}  // namespace lockstep::inline v0::flat::internal
