// PinnedMemory: host memory that is pinned, and the copies under way to and from it, which the host
// must not disturb. Not a public header.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/place.h"

namespace lockstep::inline v0::testing::fake {

// Each piece has pages of its own. Until the host has seen that a copy is over, they cannot be
// written, and not read either where the copy writes them. Any thread may call.
class PinnedMemory {
 public:
  // Nullptr where the system has none.
  void* allocate(size_t bytes);
  void free(void* data) noexcept;
  bool holds(const void* data) const;

  // An operation may touch the piece between the two; false where none is there.
  bool open(const void* data);
  void close(const void* data) noexcept;

  // The operation at `stamp` copies from the piece, or to it, until a thread has seen it over.
  void copying(const void* data, const Stamp& stamp, PlacePtr place, bool to_it);
  // The host has seen that what `clock` covers is over.
  void settle(const VectorClock& clock) noexcept;
  // The copy that the host has disturbed by touching this byte, or null. `forget`: as if it were
  // over, so that the host can go on.
  PlacePtr disturbed(const void* address, bool forget);

 private:
  struct Copy {
    Stamp stamp;
    PlacePtr place;
    bool to_it;
  };
  struct Piece {
    size_t bytes = 0;
    int opened = 0;
    std::vector<Copy> copies;
  };
  using Pieces = std::map<std::byte*, Piece>;

  static void protect(const Pieces::value_type& piece) noexcept;

  mutable Mutex mutex_;
  Pieces pieces_ LOCKSTEP_GUARDED_BY(mutex_);
};

PinnedMemory& pinned_memory();

}  // namespace lockstep::inline v0::testing::fake
