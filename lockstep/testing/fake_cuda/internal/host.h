// Host: a thread of the program as the devices see it: what it knows to be over, and what it has
// asked for. Not a public header.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/place.h"

namespace lockstep::inline v0::testing::fake {

struct StopPlace {
  HostStop cause;
  PlacePtr place;
};

// Counts, of a thread or of the process. Any thread may call.
class Tally {
 public:
  void add(const FakeCudaCounts& counts);
  FakeCudaCounts counts() const;

 private:
  mutable Mutex mutex_;
  FakeCudaCounts counts_ LOCKSTEP_GUARDED_BY(mutex_);
};

// It travels with libtorch's thread-local state, so autograd's threads are the one that called
// backward.
class Host {
 public:
  // Of the calling thread.
  static std::shared_ptr<Host> current();

  Tally tally;
  VectorClock seen;  // by its queries; belongs to Timeline

  void note(StopPlace stop);
  bool watched() const;
  void watch(bool on);  // whether stops are kept; calls nest
  std::vector<StopPlace> stops() const;

 private:
  mutable Mutex mutex_;
  int watched_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<StopPlace> stops_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::testing::fake
