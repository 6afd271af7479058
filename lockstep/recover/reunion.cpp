#include "lockstep/recover/reunion.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "lockstep/core/env.h"
#include "lockstep/core/text.h"
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

}  // namespace

// Half of an update is no valid state, a lost state cannot be restored, and without a launcher that
// replaces ranks no new rank arrives.
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
      say_at_work(comm);
      times.met = seconds();
      resume();
      times.ready = seconds();
      return;
    } catch (...) {
      reason_to_go_on(comm, lost());  // another rank has died
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

}  // namespace lockstep::inline v0::recover
