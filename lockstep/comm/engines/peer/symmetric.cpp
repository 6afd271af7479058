#include "lockstep/comm/engines/peer/symmetric.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <cerrno>
#include <string>
#include <utility>

#include "lockstep/comm/backend/device_engine.h"
#include "lockstep/comm/engines/peer/retired.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::peer {

Symmetric::Symmetric(const CudaIpc& cuda, c10::Device device, int rank, Seats seats)
    : cuda_(cuda), device_(device), rank_(rank), seats_(std::move(seats)) {}

SymmetricMemory Symmetric::allocate(int64_t bytes) {
  int id = 0;
  {
    const MutexLock lock(mutex_);
    if (next_ == Seat::kMostSymmetric) return {};  // the same on all ranks
    id = next_++;
  }
  ShownMemory& shown = seats_.of(rank_).symmetric[id];
  try {
    free_what_is_closed();
    const c10::DeviceGuard guard(device_);
    const at::NoGradGuard no_grad;
    shown.data = cuda_.allocate(static_cast<size_t>(bytes));
    bytes_at(shown.data, bytes, device_).zero_();
    bool shared = false;
    for (int r = 0; r < seats_.size(); ++r) shared |= is_other_process(r);
    if (shared) shown.handle = cuda_.handle_of(shown.data);
  } catch (const std::exception& error) {
    if (shown.data != nullptr) cuda_.free(shown.data);
    seats_.of(rank_).released[id].store(1, std::memory_order_release);
    seats_.of(rank_).shut[id].store(1, std::memory_order_release);
    throw system_error("symmetric memory of " + std::to_string(bytes) + " bytes on " +
                           device_.str() + " (" + error.what() + ")",
                       ENOMEM);
  }
  {
    const MutexLock lock(mutex_);
    Memory& memory = live_[id];
    memory.bytes = bytes;
    memory.bases.resize(static_cast<size_t>(seats_.size()));
    memory.bases[static_cast<size_t>(rank_)] = shown.data;
  }
  std::shared_ptr<void> owner(shown.data,
                              [self = shared_from_this(), id](void*) { self->release(id); });
  return {shown.data, std::move(owner), [self = shared_from_this(), id] { self->open(id); }};
}

void Symmetric::open(int id) {
  const c10::DeviceGuard guard(device_);
  const MutexLock lock(mutex_);
  Memory& memory = live_.at(id);
  for (int r = 0; r < seats_.size(); ++r) {
    if (r == rank_) continue;
    const ShownMemory& shown = seats_.of(r).symmetric[id];
    try {
      memory.bases[static_cast<size_t>(r)] =
          is_other_process(r) ? cuda_.open(shown.handle) : shown.data;
    } catch (const LaunchError& error) {
      throw system_error(
          "symmetric memory of rank " + std::to_string(r) + " (" + error.what() + ")", ENOMEM);
    }
  }
}

bool Symmetric::all(std::atomic<uint32_t> (Seat::*flags)[Seat::kMostSymmetric], int id) const {
  for (int r = 0; r < seats_.size(); ++r)
    if ((seats_.of(r).*flags)[id].load(std::memory_order_acquire) == 0) return false;
  return true;
}

// The other ranks may continue to use their memory, which this rank then reads.
void Symmetric::release(int id) noexcept {
  try {
    seats_.of(rank_).released[id].store(1, std::memory_order_release);
    const auto self = shared_from_this();
    retire({.is_closed = [self, id] { return self->all(&Seat::released, id); },
            .free = [self, id] { self->shut(id); }});
  } catch (const std::exception&) {  // the device has failed, and its memory with it
  }
}

// Closes the allocations that all ranks have released.
void Symmetric::shut(int id) {
  const c10::DeviceGuard guard(device_);
  Memory memory;
  {
    const MutexLock lock(mutex_);
    memory = std::move(live_.at(id));
    live_.erase(id);
  }
  for (int r = 0; r < seats_.size(); ++r) {
    std::byte* const base = memory.bases[static_cast<size_t>(r)];
    if (base != nullptr && is_other_process(r)) cuda_.close(base);
  }
  seats_.of(rank_).shut[id].store(1, std::memory_order_release);
  const auto self = shared_from_this();
  std::byte* const own = memory.bases[static_cast<size_t>(rank_)];
  retire({.is_closed = [self, id] { return self->all(&Seat::shut, id); },
          .free =
              [self, own] {
                const c10::DeviceGuard there(self->device_);
                self->cuda_.free(own);
              }});
}

bool Symmetric::any() const {
  const MutexLock lock(mutex_);
  return next_ > 0;
}

Place Symmetric::find(const std::byte* memory, int64_t bytes) const {
  const MutexLock lock(mutex_);
  for (const auto& [id, one] : live_) {
    const std::byte* const own = one.bases[static_cast<size_t>(rank_)];
    if (memory >= own && memory + bytes <= own + one.bytes) return {id, memory - own};
  }
  return {};
}

std::byte* Symmetric::at(int rank, Place place) const {
  const MutexLock lock(mutex_);
  return live_.at(static_cast<int>(place.id)).bases[static_cast<size_t>(rank)] + place.offset;
}

}  // namespace lockstep::inline v0::peer
