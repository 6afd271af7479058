#include "lockstep/recover/reunion.h"

#include <chrono>
#include <cstdio>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::recover {

// Half of an update is no state, a lost one is lost, and without a launcher that replaces ranks nobody
// comes.
std::string reason_to_go_on(const Communicator& comm, bool lost) {
  if (lost || comm.generation() == 0) throw;
  try {
    throw;
  } catch (const PeerLost& error) {
    return error.what();
  } catch (const Timeout& error) {
    return error.what();
  }
}

void meet_again(Communicator& comm, Deadline deadline, RecoveryTimes& times,
                const std::function<void()>& resume, const std::function<bool()>& lost) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  while (true) {
    try {
      comm = comm.reform(deadline);
      times.met = seconds();
      resume();
      times.ready = seconds();
      return;
    } catch (...) {
      reason_to_go_on(comm, lost());  // one more has died
      if (deadline.expired()) throw;
    }
  }
}

std::string recovery_line(const std::string& goes_on, const std::vector<int>& replaced,
                          const RecoveryTimes& times, const std::string& reason) {
  char seconds[64];
  std::snprintf(seconds, sizeof seconds, "%.2f s (all ranks had met after %.2f s)", times.ready,
                times.met);
  const std::string who = replaced.empty()
                              ? "nobody had to be replaced"
                              : "rank " + joined(replaced, ", ") +
                                    (replaced.size() == 1 ? " was replaced" : " were replaced");
  return goes_on + " after " + seconds + ", " + who + "; what had happened: " + reason;
}

}  // namespace lockstep::recover
