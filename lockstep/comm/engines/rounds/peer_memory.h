// PeerMemory: how a rank accesses its peers' memory without their help (one-sided, remote memory
// access).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/backend/backend.h"

namespace lockstep::inline v0::rounds {

// A range of memory that all ranks of the group have mapped, each at an address of its own.
struct Window {
  uint32_t id = 0;
  uint64_t offset = 0;
};

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // The window that contains `bytes` bytes of this rank's memory, if there is one.
  virtual std::optional<Window> find(const std::byte* memory, int64_t bytes) const = 0;
  // The address of the rank's `window` in this address space; null if it was freed.
  virtual std::byte* peer(int rank, Window window) const = 0;

  // Backend::allocate_symmetric().
  virtual SymmetricMemory allocate(int64_t bytes) = 0;
  // Backend::allocate_shared().
  virtual SymmetricMemory allocate_shared(int64_t /*bytes*/) { return {}; }

  // True if every rank can copy to and from any memory of every other; the same on all ranks.
  virtual bool copies() const = 0;
  // Copy between this rank's memory and another's. Throw PeerLost, SystemError.
  virtual void read(int rank, uint64_t address, std::byte* to, int64_t bytes) const = 0;
  virtual void write(int rank, uint64_t address, const std::byte* from, int64_t bytes) const = 0;
};

}  // namespace lockstep::inline v0::rounds
