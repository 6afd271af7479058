// Timeline: the streams of all devices, what comes before what on them, and what is still under
// way. Not a public header.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/host.h"

namespace lockstep::inline v0::testing::fake {

// A stream's number among those of all devices, as vector clocks count them.
using StreamSlot = int;

// Any thread may call.
//
// Two sorts of knowledge let the host do without an event. A wait (for an event, a stream, a
// device, a blocking copy) is made for order's sake: what it waited for is over for every thread. A
// query is often made by a thread that only watches, at times that cannot be foreseen: what it
// found over is known to its own thread alone, so that races do not hide behind it by luck.
class Timeline {
 public:
  // By libtorch's number, the default stream's is 0. Throws c10::Error for one that is not there.
  StreamSlot slot(int device, int64_t id) const;
  void add_stream(int device, int64_t id);
  std::string name(StreamSlot stream) const;  // "cuda:0, stream 3"
  int device(StreamSlot stream) const;
  bool is_default(StreamSlot stream) const;

  // An operation of the host's is next on the stream.
  Moment launch(StreamSlot stream, const Host& host);
  // All that comes before what the host gives to the stream next.
  VectorClock now(StreamSlot stream, const Host& host) const;
  VectorClock all_of(int device) const;
  // What the stream itself was given, and waits for.
  VectorClock own(StreamSlot stream) const;
  // What comes next on the stream comes after `clock`.
  void order(StreamSlot stream, const VectorClock& clock);

  void queried(Host& host, const VectorClock& clock);
  void waited(const VectorClock& clock);

  // An operation that other ranks take part in ends later, on a thread of its own. Whatever comes
  // after it waits for its end: whether all that `clock` covers is over, `but` the one itself, and
  // the wait for it, which throws Timeout after two minutes.
  void begin_late(const Stamp& stamp, std::string text);
  void end_late(const Stamp& stamp);
  bool finished(const VectorClock& clock, const Stamp* but = nullptr) const;
  void wait_for(const VectorClock& clock, const Stamp* but = nullptr);

 private:
  struct Stream {
    int device = 0;
    int64_t id = 0;
    uint64_t ticks = 0;
    VectorClock clock;
  };
  struct Late {
    Stamp stamp;
    std::string text;
  };

  const Late* late_in(const VectorClock& clock, const Stamp* but) const LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  ConditionVariable ended_;
  std::vector<Stream> streams_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::pair<int, int64_t>, StreamSlot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  VectorClock waited_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Late> late_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::testing::fake
