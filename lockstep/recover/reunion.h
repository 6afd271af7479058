// Recovery steps shared by Recovery and RollbackRecovery.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0::recover {

// Durations of this rank's latest recovery, in seconds: until all ranks had met again, and until
// all were at the same step. Zeros before the first.
struct RecoveryTimes {
  double met = 0;
  double ready = 0;
};

// The treatment of ranks that die.
enum class DeadRanks : uint8_t {
  kEndTheRun,  // as where no launcher takes care of it
  kReplaced,   // a new process takes its place: Communicator::reform()
  kLeftOut,    // the others go on without it: Communicator::shrink()
};

// Whether this job's launcher lets the others go on without ranks that die (`lockstep run
// --on-failure shrink`).
LOCKSTEP_API bool job_shrinks();
// Throws: InvalidArgument where the job replaces ranks and is to shrink as well.
LOCKSTEP_API DeadRanks dead_ranks_of(const Communicator& comm, bool shrinks);

// Called while an exception is handled: returns its text if the run may go on and it is another
// rank's failure (PeerLost, Timeout). Rethrows any other, and every one where the state is `lost`;
// the launcher learns which device it was that failed (rethrow_with_note_of_device()).
LOCKSTEP_API std::string reason_to_go_on(DeadRanks dead, bool lost);

// Called while an exception is handled: rethrows it. If it is the failure of this rank's device, the
// launcher's agent is told first, so that it is named and the rank's next process takes another one.
// The process should end.
[[noreturn]] LOCKSTEP_API void rethrow_with_note_of_device();

// Exchanges the ranks' progress: rows[r] are rank r's numbers. All ranks give the same number of
// them.
// Collective: all ranks call it.
LOCKSTEP_API std::vector<std::vector<int64_t>> exchange_numbers(Communicator& comm,
                                                                std::span<const int64_t> own);

// Applies `decide`, which gives all ranks the same result or error; rank 0 reports an error for all
// of them.
template <typename Decide>
auto decided_by_all(const Communicator& comm, const Decide& decide) {
  try {
    return decide();
  } catch (const Error& error) {
    if (comm.rank() == 0) log_warning(error.what());
    throw;
  }
}

// Makes `comm` the next generation, in which no rank has finished, or the group of the ranks that
// are left, and calls `resume`; repeats both until no rank dies on the way. `lost` says whether the
// state is lost after a failure. Rethrows as reason_to_go_on(), at the deadline the last error, and
// at once the error of a rank that the others have left out.
LOCKSTEP_API void meet_again(Communicator& comm, DeadRanks dead, Deadline deadline,
                             RecoveryTimes& times, const std::function<void()>& resume,
                             const std::function<bool()>& lost);

// Returns once all ranks have reached this point and no longer need each other. Each tells its
// agent, which simulates no failures from then on, before the final barrier; and after it, so that
// a rank that is killed afterwards does not by itself fail the job.
// Collective: all ranks call it.
LOCKSTEP_API void finish_together(Communicator& comm);
// Revokes the report of finish_together(): the rank has work again.
LOCKSTEP_API void say_at_work(const Communicator& comm);

// "rank 1 was replaced".
LOCKSTEP_API std::string replaced_text(const std::vector<int>& replaced);
// "step 20 goes on after 0.71 s (all ranks had met after 0.68 s), rank 1 was replaced; what had
// happened: ...". `who`: replaced_text(), or what became of the others otherwise.
LOCKSTEP_API std::string recovery_line(const std::string& goes_on, const std::string& who,
                                       const RecoveryTimes& times, const std::string& reason);

}  // namespace lockstep::inline v0::recover
