// What a rank does when another one has died, whatever its state consists of.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::recover {

// Seconds of the latest recovery on this rank: until all ranks had met again, and until all stood at
// the same step. Zeros before the first.
struct RecoveryTimes {
  double met = 0;
  double ready = 0;
};

// While an exception is handled: what it says, where ranks are replaced and it is another rank's
// failure (PeerLost, Timeout). Any other, and every one where the state is `lost`, is thrown further.
std::string reason_to_go_on(const Communicator& comm, bool lost);

// What each rank says of where it stands: rows[r] are rank r's numbers. All give as many. Collective.
std::vector<std::vector<int64_t>> exchange_numbers(Communicator& comm,
                                                   std::span<const int64_t> own);

// What `decide` makes of that, the same on all ranks, its error included: rank 0 says one for all of them.
template <typename Decide>
auto decided_by_all(const Communicator& comm, const Decide& decide) {
  try {
    return decide();
  } catch (const Error& error) {
    if (comm.rank() == 0) log_warning(error.what());
    throw;
  }
}

// Makes `comm` the next generation, in which nobody has finished, and calls `resume`, again until no rank dies on the way. `lost`
// says whether a failure was the last. Throws what reason_to_go_on() throws further, and at the
// deadline what came last.
void meet_again(Communicator& comm, Deadline deadline, RecoveryTimes& times,
                const std::function<void()>& resume, const std::function<bool()>& lost);

// Returns once all ranks have come here, having done all in which another one needs them. Each tells its agent so, which
// simulates no failures from then on, before the barrier behind which ranks go. Collective.
void finish_together(Communicator& comm);
// Takes back what finish_together() has said: there is work again.
void say_at_work(const Communicator& comm);

// "step 20 goes on after 0.71 s (all ranks had met after 0.68 s), rank 1 was replaced; what had
// happened: ...".
std::string recovery_line(const std::string& goes_on, const std::vector<int>& replaced,
                          const RecoveryTimes& times, const std::string& reason);

}  // namespace lockstep::recover
