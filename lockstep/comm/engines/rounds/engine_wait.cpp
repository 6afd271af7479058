// Engine: waiting, and failures during a wait.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/engines/rounds/operation.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::rounds {
namespace {

constexpr int kYields = 1000;  // before the first sleep
// Peers ring the doorbell; the slice only bounds how late a dead peer, which does not ring, is
// noticed.
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr double kWarnAfterSeconds = 10;
// How long a rank that detected a mismatch waits for the other ranks' view of it.
constexpr auto kPatience = std::chrono::milliseconds(200);
// How many earlier calls are searched for a difference in the calls' history.
constexpr uint64_t kLookBack = 8;

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

using lockstep::numbered;
// The number that the ranks compare: a call may be one of several parts of a larger one.
std::string numbered(const Call& call) {
  return numbered(call.record != nullptr ? *call.record : make_record(call));
}

}  // namespace

bool Engine::poll(const bool& done, const Call& call, bool check_peers) {
  if (done) return true;
  progress();
  if (done) return true;
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  if (check_peers) check_slowly(done, call);
  return done;
}

Probe Engine::probe(int src, int tag) {
  progress();
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  const bool found = channels_.probe(src, tag);
  doorbell_.ring();  // the probe may have freed space
  if (found) return Probe::kMessage;
  // Checks all ranks at every 64th probe of each.
  if (++probes_ / region_.size() % 64 != 0) return Probe::kNothing;
  const bool departed = region_.rank(src).departed.load(std::memory_order_acquire) != 0;
  const bool dead = !departed && is_dead_ && is_dead_(src);
  if (!departed && !dead) return Probe::kNothing;
  // Messages that it sent before it left are still there.
  if (channels_.probe(src, tag)) return Probe::kMessage;
  if (departed) return Probe::kLeft;
  throw PeerLost(
      "a receive from any rank may wait for " + whereabouts(src) + ", but its process is dead",
      src);
}

// Yields, then sleeps until a peer rings. A yield costs little where no other thread wants the
// processor, and lets a peer go on that shares it: pauses instead were no faster.
void Engine::wait(const bool& done, const Call& call, Deadline deadline) {
  int idle = 0;
  bool any_moved = false;  // since the last slow check
  double warn_at = kWarnAfterSeconds;
  while (!done) {
    if (broken_) std::rethrow_exception(broken_);
    bool moved = false;
    try {
      moved = advance();
    } catch (...) {
      if (!broken_) broken_ = std::current_exception();
      throw;
    }
    if (done) return;
    if (moved) {
      idle = 0;
      any_moved = true;
      continue;
    }
    const bool siblings = progress_siblings(siblings_);
    if (++idle < kYields) {
      ::sched_yield();
      if (idle % 64 == 0) {
        check_aborted();
        // On a busy machine every yield may take a whole time slice.
        if (deadline.expired()) idle = kYields;
      }
      continue;
    }
    check_slowly(done, call);
    if (done) return;
    if (deadline.expired()) time_out(call, deadline);
    check_elsewhere(call, std::exchange(any_moved, false));
    if (deadline.elapsed_seconds() > warn_at) {
      std::vector<std::string> late;
      for (const int r : awaited(call)) late.push_back(whereabouts(r));
      log_warning(numbered(call) + " has waited " + std::to_string(static_cast<int>(warn_at)) +
                  " s for " + joined(late, "; "));
      warn_at *= 3;
    }
    doorbell_.announce();
    try {
      moved = advance();
    } catch (...) {
      doorbell_.withdraw();
      if (!broken_) broken_ = std::current_exception();
      throw;
    }
    if (done || moved || region_.header().failure.any())
      doorbell_.withdraw();
    else
      doorbell_.sleep(
          std::min<Deadline::Duration>(siblings ? kSiblingNap : kSlice, deadline.remaining()));
  }
}

void Engine::check_slowly(const bool& done, const Call& call) {
  const bool pair = call.op == Op::kSend || call.op == Op::kRecv;
  own_.peer_then.store(pair ? call.peer + 1 : 0, std::memory_order_relaxed);
  own_.looked.store(now_ns(), std::memory_order_release);  // after the peer that it looked for
  check_aborted();
  if (!queue_.empty()) compare_descriptors(*queue_.front());
  check_lost(done, call);
}

void Engine::check_elsewhere(const Call& call, bool moved) {
  if (siblings_ == nullptr) return;
  const std::string wrong = siblings_->report_wait(call, awaited(call), moved);
  if (!wrong.empty()) fail(Failure::kMismatch, -1, wrong);
}

void Engine::time_out(const Call& call, Deadline deadline) {
  const std::vector<int> ranks = culprits(call, deadline.timeout() / 2);
  std::vector<std::string> late;
  for (const int r : ranks) late.push_back(whereabouts(r));
  std::ostringstream text;
  text << numbered(call) << " on rank " << rank_ << " waited " << deadline.timeout_seconds()
       << " s; not arrived: " << joined(late, "; ") << "; raise the time-out if they are only slow";
  fail(Failure::kTimeout, ranks.empty() ? -1 : ranks.front(), text.str());
}

// The awaited ranks that do not themselves wait for another rank: those that have not checked on
// their peers for `silence`. Where all awaited ranks wait, the ranks that hold them up: in a chain
// of sends and receives, the rank at its end.
std::vector<int> Engine::culprits(const Call& call, Deadline::Duration silence) const {
  const int64_t since = now_ns() - silence.count();
  const auto waits = [&](int r) {
    const RankState& state = region_.rank(r);
    return state.looked.load(std::memory_order_acquire) > since &&
           stopped_by(state.pid.load(std::memory_order_relaxed)).empty();
  };
  const std::vector<int> direct = awaited(call);
  std::vector<int> ranks;
  std::copy_if(direct.begin(), direct.end(), std::back_inserter(ranks),
               [&](int r) { return !waits(r); });
  if (!ranks.empty()) return ranks;
  std::vector<bool> seen(static_cast<size_t>(region_.size()), false);
  seen[static_cast<size_t>(rank_)] = true;
  for (int r : direct) {
    while (r >= 0 && !seen[static_cast<size_t>(r)]) {
      seen[static_cast<size_t>(r)] = true;
      if (!waits(r)) {
        ranks.push_back(r);
        break;
      }
      r = region_.rank(r).peer_then.load(std::memory_order_relaxed) - 1;
    }
  }
  if (!ranks.empty() || queue_.empty()) return ranks.empty() ? direct : ranks;
  for (int r = 0; r < region_.size(); ++r) {
    const bool through =
        region_.rank(r).done.load(std::memory_order_acquire) >= queue_.front()->number;
    if (r != rank_ && !through && !waits(r)) ranks.push_back(r);
  }
  return ranks.empty() ? direct : ranks;
}

bool Engine::has_posted(const Operation& op, int rank) const {
  return region_.descriptor(rank, op.number).number.load(std::memory_order_acquire) == op.number;
}

// The ranks that `call` needs to continue.
std::vector<int> Engine::awaited(const Call& call) const {
  using Phase = Operation::Phase;
  if (call.op == Op::kSend || call.op == Op::kRecv) return {call.peer};
  std::vector<int> ranks;
  if (queue_.empty()) return ranks;
  const Operation& op = *queue_.front();
  const bool slots_full = op.program && op.produced < op.program->rounds &&
                          op.base + static_cast<uint64_t>(op.produced) >= slowest_ + kSlots;
  const uint64_t round = op.base + static_cast<uint64_t>(op.consumed);
  const bool combines = op.program && op.program->combine;
  const int64_t read = combines ? op.combined : op.consumed;  // in rounds
  const bool reads_on = read < op.produced;
  for (int r = 0; r < region_.size(); ++r) {
    if (r == rank_) continue;
    const RankState& state = region_.rank(r);
    bool waits = false;
    switch (op.phase) {
      case Phase::kWaitingTurn:
        waits = op.number > state.done.load(std::memory_order_acquire) + kDescriptors;
        break;
      case Phase::kLines:
        waits = !ll_.ready(r, op.pieces.offer(r));
        break;
      case Phase::kMeeting:
        waits = meets(op, r) && !has_posted(op, r);
        break;
      case Phase::kStaged:
        waits = (reads(op, r) && (!has_posted(op, r) ||
                                  (reads_on && state.published.load(std::memory_order_acquire) <=
                                                   op.base + static_cast<uint64_t>(read)))) ||
                (combines && op.consumed < op.combined &&
                 state.combined.load(std::memory_order_acquire) <= round) ||
                (slots_full && state.consumed.load(std::memory_order_acquire) + kSlots <=
                                   op.base + static_cast<uint64_t>(op.produced));
        break;
      case Phase::kLeaving:
        waits = touched_by(op, r) && state.executed.load(std::memory_order_acquire) < op.number;
        break;
    }
    if (waits) ranks.push_back(r);
  }
  return ranks;
}

std::string Engine::whereabouts(int rank) const {
  const RankState& state = region_.rank(rank);
  std::string text = "rank " + std::to_string(rank);
  if (const int pid = state.pid.load(std::memory_order_relaxed); pid != 0)
    text += " (" + pid_words(pid) + ")";
  const uint64_t last = state.posted.load(std::memory_order_acquire);
  if (last == 0) return text + ", which has called no collective yet";
  // The last one may be incomplete.
  for (uint64_t number = last; number > 0 && number + 2 > last; --number) {
    if (const auto record = posted(rank, number))
      return text + ", whose last collective was " + numbered(*record);
  }
  return text + ", which calls one collective after another";
}

// The rank's call number `number`; nullopt where it has not reached that number, or where a later
// call has overwritten it.
std::optional<trace::CallRecord> Engine::posted(int rank, uint64_t number) const {
  const CallDescriptor& descriptor = region_.descriptor(rank, number);
  if (descriptor.number.load(std::memory_order_acquire) != number) return std::nullopt;
  const trace::CallRecord record = descriptor.record;
  // The record is complete unless the rank has reached the call that overwrites it, as it may once
  // all ranks have finished this one.
  const uint64_t last = region_.rank(rank).posted.fetch_add(0, std::memory_order_acq_rel);
  const bool stays = number > own_.done.load(std::memory_order_relaxed);
  return stays || last + 1 < number + kDescriptors ? std::optional(record) : std::nullopt;
}

// ---- out of step ----

// May be called only after the rank has posted this call.
void Engine::check_descriptor(const Operation& op, int rank) {
  const CallDescriptor& descriptor = region_.descriptor(rank, op.number);
  if (descriptor.fingerprint != op.record.fingerprint || descriptor.history != op.history)
    report_mismatch(op);
}

// For ranks whose descriptors a call does not wait for: they are compared once it takes long.
void Engine::compare_descriptors(const Operation& op) {
  for (int r = 0; r < region_.size(); ++r) {
    if (r != rank_ && has_posted(op, r)) check_descriptor(op, r);
  }
}

// The ranks' calls number `number`, as far as they are known; empty if all called the same.
std::vector<RankCall> Engine::differing(uint64_t number, const Operation& op) const {
  std::vector<RankCall> calls;
  bool differ = false;
  for (int r = 0; r < region_.size(); ++r) {
    const bool own = r == rank_ && number == op.number;  // perhaps not posted yet
    const std::optional<trace::CallRecord> record = own ? op.record : posted(r, number);
    if (!record) continue;
    calls.push_back({r, record->sequence, trace::describe(*record), record->fingerprint});
    differ |= record->fingerprint != calls.front().fingerprint;
  }
  if (!differ) calls.clear();
  return calls;
}

void Engine::report_mismatch(const Operation& op) {
  // The other ranks are on their way and shall be named, too.
  const Deadline patience = Deadline::after(kPatience);
  for (int r = 0; r < region_.size(); ++r) {
    while (r != rank_ && region_.rank(r).posted.load(std::memory_order_acquire) < op.number &&
           !lost(r) && !patience.expired())
      ::sched_yield();
  }
  // The first call in which they differ, because earlier differences may have gone unnoticed, such
  // as two ranks that both consider themselves the root.
  const uint64_t first = op.number > kLookBack ? op.number - kLookBack : 1;
  std::vector<RankCall> calls;
  uint64_t number = first;
  while (number <= op.number && (calls = differing(number, op)).empty()) ++number;
  if (calls.empty()) {
    fail(Failure::kMismatch, -1, mismatch_text_before(kLookBack, numbered(op.record)));
  }
  fail(Failure::kMismatch, -1,
       mismatch_text(calls, number < op.number ? numbered(op.record) : std::string()));
}

// ---- gone ----

void Engine::check_aborted() {
  const auto report = region_.header().failure.read();
  if (!report) return;
  break_down(report->kind, report->rank,
             "rank " + std::to_string(report->reporter) + " reported: " + report->text);
}

bool Engine::lost(int rank) const {
  if (rank == rank_) return false;
  return region_.rank(rank).departed.load(std::memory_order_acquire) != 0 ||
         (is_dead_ && is_dead_(rank));
}

void Engine::check_lost(const bool& done, const Call& call) {
  for (const int r : awaited(call)) {
    const bool departed = region_.rank(r).departed.load(std::memory_order_acquire) != 0;
    if (!departed && !(is_dead_ && is_dead_(r))) continue;
    // Data that it sent before it left is still there: only data that is missing now is missing for
    // good.
    progress();
    if (broken_) std::rethrow_exception(broken_);
    if (done) return;
    const std::vector<int> still = awaited(call);
    if (std::find(still.begin(), still.end(), r) == still.end()) continue;
    fail(Failure::kPeerLost, r,
         numbered(call) + " needs " + whereabouts(r) + ", but " +
             (departed ? "it has left the group" : "its process is dead"));
  }
}

void Engine::abort(const Breakage& why) noexcept {
  if (region_.header().failure.report(why.kind, rank_, why.rank, why.text)) doorbell_.ring();
}

void Engine::fail(Failure kind, int lost_rank, const std::string& text) {
  abort({kind, lost_rank, text});
  break_down(kind, lost_rank, text);
}

// After this has thrown, the caller's memory is its own again.
void Engine::break_down(Failure kind, int lost_rank, const std::string& text) {
  quiesce();
  try {
    throw_failure(kind, lost_rank, text);
  } catch (...) {
    broken_ = std::current_exception();
    throw;
  }
}

}  // namespace lockstep::inline v0::rounds
