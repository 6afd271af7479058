// CallCollector: the calls of a rank that a trace shows, taken from the flight recorder before they
// are overwritten there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::timeline {

// The calls that begin after its construction, and those that were under way then.
// Thread-safety: one thread at a time; other threads may be in calls meanwhile.
class LOCKSTEP_API CallCollector {
 public:
  // `place`: the rank's on the board. `capacity`: how many calls it takes; further ones are lost.
  CallCollector(std::shared_ptr<const trace::CallBoard> board, int place, size_t capacity);

  // Takes what there is by now. The board keeps the rank's last 1,024 calls, so what is not taken in
  // time is lost. A call that another thread is just recording is taken the next time.
  void collect();
  // The same for the last time: it waits a few milliseconds for threads that are just recording.
  void finish();

  std::vector<trace::KeptCall> calls() const;  // in the order in which they began
  uint64_t lost() const;  // calls that found no room, or were overwritten before their end was seen

 private:
  bool read();
  void take(const trace::KeptCall& call);

  const std::shared_ptr<const trace::CallBoard> board_;
  const int place_;
  const size_t capacity_;
  uint64_t first_ = 0;    // the number of the first call that counts, beside those under way
  uint64_t next_ = 0;     // from which calls are to be read again
  uint64_t seen_ = 0;     // calls up to the latest reading
  uint64_t earlier_ = 0;  // those before first_ that were under way
  std::map<uint64_t, trace::KeptCall> calls_;  // by number
};

}  // namespace lockstep::inline v0::timeline
