// AccessHistory: which operations read and wrote the parts of a block of memory last, and whether
// another one may come now. Not a public header.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/place.h"

namespace lockstep::inline v0::testing::fake {

struct Access {
  Stamp stamp;
  PlacePtr place;
  bool write = false;
};

// Bytes of a block, from begin to before end.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

// Used by one thread at a time.
class AccessHistory {
 public:
  // An operation reads or writes the bytes. An access that is not known to be over by `clock`, and
  // that it must not run beside: a read one that wrote, a write any. The access counts from now on
  // either way.
  std::optional<Access> add(ByteRange bytes, Access access, const VectorClock& clock);

  // The accesses of the whole block that `clock` does not cover, the latest of each stream.
  std::vector<Access> beyond(const VectorClock& clock) const;

 private:
  struct Segment {
    size_t end = 0;
    std::optional<Access> written;
    std::vector<Access> read;  // since it was written, the last of each stream
  };

  void split(size_t at);

  std::map<size_t, Segment> segments_;  // by their begin
};

}  // namespace lockstep::inline v0::testing::fake
