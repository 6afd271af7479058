#include "lockstep/recover/reunion.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "lockstep/core/env.h"
#include "lockstep/core/text.h"
#include "lockstep/device/failure.h"
#include "lockstep/launch/error_note.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::recover {
namespace {

using Presence = trace::CallBoard::Presence;

// Only where ranks are replaced.
void say(const Communicator& comm, Presence presence) {
  if (comm.generation() == 0) return;
  if (auto board = trace::CallBoard::inherit(process_env()))
    board->set_presence(comm.local_rank(), presence);
}

// A rank whose device has failed cannot go on, whichever was noticed first.
void fail_with_device(c10::Device device) {
  try {
    device::throw_if_failed(device);
  } catch (...) {
    rethrow_with_note_of_device();
  }
}

// The group of the ranks that are left.
Communicator smaller(Communicator& comm, Deadline deadline) {
  while (true) {
    try {
      return comm.shrink(deadline);
    } catch (const PeerLost& error) {
      // Another one has died on the way, unless it is this rank that the others do without.
      if (error.rank() == comm.rank() || deadline.expired()) throw;
    }
  }
}

}  // namespace

bool job_shrinks() {
  return process_env()("LOCKSTEP_ON_FAILURE") == "shrink";
}

DeadRanks dead_ranks_of(const Communicator& comm, bool shrinks) {
  if (comm.generation() == 0) return shrinks ? DeadRanks::kLeftOut : DeadRanks::kEndTheRun;
  if (shrinks)
    throw InvalidArgument(
        "recovery: this job's launcher replaces ranks that die; leave out either --on-failure "
        "replace or shrinks");
  return DeadRanks::kReplaced;
}

// Half of an update is no valid state, a lost state cannot be restored, and without a launcher that
// takes care of dead ranks none is replaced, and the others are ended.
std::string reason_to_go_on(DeadRanks dead, bool lost) {
  const bool goes_on = !lost && dead != DeadRanks::kEndTheRun;
  try {
    throw;
  } catch (const PeerLost& error) {
    if (goes_on) return error.what();
    throw;
  } catch (const Timeout& error) {
    if (goes_on) return error.what();
    throw;
  } catch (...) {
    rethrow_with_note_of_device();
  }
}

void rethrow_with_note_of_device() {
  try {
    throw;
  } catch (const std::exception& error) {
    if (const auto failure = device::device_failure(error))
      launch::leave_error_note({.message = failure->what, .device = failure->device.str()},
                               process_env());
    throw;
  }
}

std::vector<std::vector<int64_t>> exchange_numbers(Communicator& comm,
                                                   std::span<const int64_t> own) {
  const auto count = static_cast<int64_t>(own.size());
  const at::Tensor mine = at::empty({1, count}, at::kLong);
  std::copy(own.begin(), own.end(), mine.mutable_data_ptr<int64_t>());
  const at::Tensor all = comm.all_gather(mine);
  std::vector<std::vector<int64_t>> rows;
  for (int r = 0; r < comm.size(); ++r) {
    const int64_t* row = all.const_data_ptr<int64_t>() + r * count;
    rows.emplace_back(row, row + count);
  }
  return rows;
}

void meet_again(Communicator& comm, DeadRanks dead, Deadline deadline, RecoveryTimes& times,
                const std::function<void()>& resume, const std::function<bool()>& lost) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  while (true) {
    fail_with_device(comm.device());
    if (dead == DeadRanks::kLeftOut) comm = smaller(comm, deadline);
    try {
      if (dead == DeadRanks::kReplaced) comm = comm.reform(deadline);
      say_at_work(comm);
      times.met = seconds();
      resume();
      times.ready = seconds();
      return;
    } catch (...) {
      reason_to_go_on(dead, lost());  // another rank has died
      if (deadline.expired()) throw;
    }
  }
}

void finish_together(Communicator& comm) {
  say(comm, Presence::kFinished);
  comm.barrier();
  say(comm, Presence::kAllFinished);
}

void say_at_work(const Communicator& comm) {
  say(comm, Presence::kAtWork);
}

std::string replaced_text(const std::vector<int>& replaced) {
  return replaced.empty() ? "no rank had to be replaced"
                          : "rank " + joined(replaced, ", ") +
                                (replaced.size() == 1 ? " was replaced" : " were replaced");
}

std::string recovery_line(const std::string& goes_on, const std::string& who,
                          const RecoveryTimes& times, const std::string& reason) {
  char seconds[64];
  std::snprintf(seconds, sizeof seconds, "%.2f s (all ranks had met after %.2f s)", times.ready,
                times.met);
  return goes_on + " after " + seconds + ", " + who + "; what had happened: " + reason;
}

}  // namespace lockstep::inline v0::recover
