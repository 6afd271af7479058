// Engine: waiting, and the causes that end a wait early.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/engines/tcp/engine.h"
#include "lockstep/core/check.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::tcp {
namespace {

constexpr double kWarnSeconds = 10;
// without progress, before a rank tells all where it waits
constexpr double kAnnounceSeconds = 0.5;
constexpr double kAnnounceAgain = 5;
constexpr auto kAskTime = std::chrono::milliseconds(300);    // for all ranks to report their calls
constexpr auto kFlushTime = std::chrono::milliseconds(250);  // for the last messages to leave
// How long a wait looks again and again before it sleeps, and gives its processor away in between:
// a processor that sleeps takes longer to wake up than a message between two hosts takes.
constexpr double kLookSeconds = 0.0001;
constexpr double kYieldSeconds = 0.002;  // the same for what other engines do, too
constexpr int kYields = 1000;            // ... and how often at most
constexpr Deadline::Duration kSleep = std::chrono::milliseconds(100);

// This long before the deadline a rank asks the others where they are.
Deadline::Duration time_to_ask(Deadline deadline) {
  constexpr Deadline::Duration kLeast = std::chrono::milliseconds(20);
  constexpr Deadline::Duration kMost = std::chrono::milliseconds(250);
  return std::clamp(deadline.timeout() / 8, kLeast, kMost);
}

// How long a wait for what other engines do sleeps before it asks them again: it may notice the end
// late by a sixteenth of the time that it has waited.
Deadline::Duration nap_after(double seconds, bool impatient) {
  constexpr double kShortest = 5e-5;
  const double longest = impatient ? 1e-4 : 1e-3;
  const std::chrono::duration<double> nap(std::clamp(seconds / 16, kShortest, longest));
  return std::chrono::duration_cast<Deadline::Duration>(nap);
}

// Whether no rank can complete before all have called it. For other operations it is not known here
// which ranks they need.
bool needs_all(Op op) {
  return op == Op::kBarrier || op == Op::kAllReduce || op == Op::kAllGather ||
         op == Op::kReduceScatter || op == Op::kAllToAll;
}

std::vector<int> parse_ranks(std::string_view text, int size) {
  std::vector<int> ranks;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto rank = parse_int(std::string(text.substr(0, comma)), 0, size - 1);
    if (rank) ranks.push_back(static_cast<int>(*rank));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return ranks;
}

}  // namespace

bool Engine::poll(Pending& pending) {
  if (pending.done()) return true;
  check_broken();
  check_interrupted();
  const Waiting waiting(*this, pending);
  bool moved = pending.advance();
  if (pending.done()) return true;
  moved |= advance(&pending);
  if (pending.done()) return true;
  if (moved) pending.advance();
  if (pending.done()) return true;
  check_lost(pending);
  return pending.done();
}

void Engine::wait(Pending& pending, Deadline deadline) {
  int idle = 0;
  bool looks = true;
  bool any_moved = false;  // data moved since the last slow check
  uint64_t arrivals = arrivals_;
  unsigned turns = 0;
  double still_since = deadline.elapsed_seconds();
  double announce_after = kAnnounceSeconds;
  double warn_at = kWarnSeconds;
  const auto start_anew = [&] {  // something has moved
    idle = 0;
    looks = true;
    still_since = -1;
    announce_after = kAnnounceSeconds;
  };
  const Waiting waiting(*this, pending);
  const Deadline::Duration grace = time_to_ask(deadline);
  std::optional<Deadline> answers;  // the answers' deadline
  while (!pending.done()) {
    check_broken();
    check_interrupted();
    bool moved = pending.advance();
    if (pending.done()) return;
    any_moved |= moved;
    moved |= advance(&pending);
    if (pending.done()) return;
    any_moved |= std::exchange(arrivals, arrivals_) != arrivals_;
    const bool siblings = !moved && progress_siblings(siblings_);
    if (moved) {
      start_anew();
      if (++turns % 64 != 0) continue;
    } else if (++idle < spins_) {
      continue;
    } else if (looks) {
      ::sched_yield();  // which may take a whole time slice on a busy machine
      if (still_since < 0) still_since = deadline.elapsed_seconds();
      const bool others = pending.needs_advance();
      looks = deadline.elapsed_seconds() - still_since < (others ? kYieldSeconds : kLookSeconds) &&
              !(others && idle >= kYields);
      if (looks) continue;
    }
    check_lost(pending);
    const Call& call = pending.call();
    const double now = deadline.elapsed_seconds();
    if (still_since < 0) still_since = now;
    const Deadline::Duration left = deadline.remaining();
    if (!answers && left <= grace) {
      ask_where();
      answers = Deadline::after(grace);
    }
    const bool expired = left == Deadline::Duration::zero();
    if (expired && (has_told(pending) || answers->expired())) time_out(pending, deadline);
    if (siblings_ != nullptr && !expired) {
      const std::string wrong =
          siblings_->report_wait(call, needs_all(call.op) ? pending.late() : std::vector<int>(),
                                 std::exchange(any_moved, false));
      if (!wrong.empty()) fail(Failure::kMismatch, -1, wrong);
    }
    if (now - still_since > announce_after) {
      announce();
      announce_after += kAnnounceAgain;
    }
    if (now > warn_at) {
      std::ostringstream text;
      text << "#" << call.sequence << " " << describe(call) << " has waited "
           << static_cast<int>(warn_at) << " s for";
      for (const int r : pending.late()) text << " " << whereabouts(r) << ";";
      log_warning(text.str());
      warn_at *= 3;
    }
    Deadline::Duration nap = pending.needs_advance() || siblings
                                 ? nap_after(now - still_since, pending.is_impatient())
                                 : kSleep;
    nap = std::min(nap, expired ? answers->remaining() : answers ? left : left - grace);
    if (moved) nap = Deadline::Duration::zero();
    if (advance(&pending, nap)) start_anew();
  }
}

// All ranks are asked, since the chain of ranks that wait for each other may lead anywhere.
void Engine::ask_where() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    peer.told = false;
    if (!peer.link || !peer.link->lost().empty() || peer.departed) continue;
    FrameHeader where;
    where.type = FrameType::kWhere;
    where.kind = kWhereNow;
    link_for(r)->push(where, {});
  }
}

// Whether all ranks between this one and the late ones have reported their position: then the late
// ones are known, and no further wait is needed.
bool Engine::has_told(const Pending& pending) const {
  const std::vector<int> ends = culprits(pending);
  return std::all_of(ends.begin(), ends.end(), [this](int r) { return peers_[r].told; });
}

// The ranks at which the waiting ends: those that this rank waits for or, where they wait too,
// those that they wait for, and so on. Where every rank waits for another, the ranks that this one
// waits for.
std::vector<int> Engine::culprits(const Pending& pending) const {
  const std::vector<int> late = pending.late();
  std::vector<int> open = late;
  std::vector<int> ends;
  std::vector<bool> seen(static_cast<size_t>(size_), false);
  seen[static_cast<size_t>(rank_)] = true;
  while (!open.empty()) {
    const int r = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(r)]) continue;
    seen[static_cast<size_t>(r)] = true;
    const Peer& peer = peers_[r];
    if (peer.told && !peer.last.waits_for.empty())
      open.insert(open.end(), peer.last.waits_for.begin(), peer.last.waits_for.end());
    else
      ends.push_back(r);
  }
  std::sort(ends.begin(), ends.end());
  return ends.empty() ? late : ends;
}

void Engine::time_out(const Pending& pending, Deadline deadline) {
  const Call& call = pending.call();
  const std::vector<int> late = culprits(pending);
  std::ostringstream text;
  text << "#" << call.sequence << " " << describe(call) << " on rank " << rank_ << " waited "
       << deadline.timeout_seconds() << " s; not arrived:";
  for (const int r : late) text << " " << whereabouts(r) << ";";
  std::vector<int> between;
  for (const int r : pending.late()) {
    if (std::find(late.begin(), late.end(), r) == late.end()) between.push_back(r);
  }
  if (between.size() == 1) text << " rank " << between[0] << " waits for that too;";
  if (between.size() > 1) text << " ranks " << joined(between, ", ") << " wait for that too;";
  fail(Failure::kTimeout, late.empty() ? -1 : late.front(),
       text.str() + " raise the time-out if they are only slow");
}

std::string Engine::whereabouts(int rank) const {
  const Record& last = peers_[rank].last;
  std::string text = "rank " + std::to_string(rank);
  if (last.sequence == 0) return text + ", of which no collective is known here yet";
  text += ", whose last known collective was #" + std::to_string(last.sequence) + " " + last.text;
  if (!last.waits_for.empty()) text += ", where it waited for rank " + joined(last.waits_for, ", ");
  return text;
}

void Engine::check_lost(Pending& pending) {
  for (const int r : pending.awaited()) {
    if (r == rank_) continue;
    const Peer& peer = peers_[r];
    if (peer.link->lost().empty()) continue;
    const Call& call = pending.call();
    fail(Failure::kPeerLost, r,
         "#" + std::to_string(call.sequence) + " " + describe(call) + " needs " + whereabouts(r) +
             ", but " + (peer.departed ? "it has left the group" : peer.link->lost()));
  }
}

Probe Engine::probe(int src, int tag) {
  advance();
  if (messages_.has_unclaimed(src, tag)) return Probe::kMessage;
  const Peer& peer = peers_[src];
  if (!peer.link || peer.link->lost().empty()) return Probe::kNothing;
  if (peer.departed) return Probe::kLeft;
  fail(Failure::kPeerLost, src,
       "a message from " + whereabouts(src) + " is looked for, but " + peer.link->lost());
}

bool Engine::lost(int peer) const {
  const std::unique_ptr<Link>& link = peers_[peer].link;
  if (!link) return false;
  if (!link->lost().empty() || peers_[peer].departed) return true;
  // A broken group reads no more data, so this asks the system.
  pollfd state{link->fd(), POLLRDHUP, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// Reports to all ranks where this one waits: this is how two ranks notice that they wait for each
// other in different calls without having sent anything.
void Engine::announce() {
  if (entered_ == 0) return;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || !peer.link->lost().empty() || peer.departed || peer.link->is_receiving())
      continue;
    push_here(r, kHereUnasked);
  }
}

// This rank's place, and the ranks that it waits for.
void Engine::push_here(int peer, uint8_t kind) {
  const Record& mine = latest();
  FrameHeader header;
  header.type = FrameType::kHere;
  header.kind = kind;
  header.key = collective_key(mine.sequence, 0);
  header.fingerprint = mine.fingerprint;
  header.history = mine.history;
  link_for(peer)->push(
      header,
      mine.text + "\n" + (waiting_ != nullptr ? joined(waiting_->late(), ",") : std::string()));
}

// `theirs` belongs to a collective that this rank has entered. A record that it no longer has is
// not compared: a difference there shows in the history of all later calls.
void Engine::compare(int peer, const Record& theirs) {
  const Record* mine = record(theirs.sequence);
  if (mine == nullptr || trouble_ || asking_) return;
  if (mine->fingerprint == theirs.fingerprint && mine->history == theirs.history) return;
  peers_[peer].differing = theirs;
  const bool earlier = mine->fingerprint == theirs.fingerprint;
  raise({Failure::kMismatch, peer, "", theirs.sequence, earlier});
}

void Engine::answer(int peer, uint64_t sequence) {
  // Where this rank has not reached it, its last record.
  const Record* mine = sequence > entered_ ? &latest() : record(sequence);
  FrameHeader header;
  header.type = FrameType::kHere;
  header.kind = mine != nullptr ? kHereCalled : kHereForgotten;
  if (mine != nullptr) {
    header.key = collective_key(mine->sequence, 0);
    header.fingerprint = mine->fingerprint;
    header.history = mine->history;
  }
  link_for(peer)->push(header, mine != nullptr ? std::string_view(mine->text) : "");
}

void Engine::hear_answer(int peer, const FrameHeader& header, std::string_view text) {
  if (header.kind == kHereForgotten) {
    peers_[peer].answer.emplace();
    return;
  }
  const size_t line = std::min(text.find('\n'), text.size());
  Record theirs{sequence_of(header.key), header.fingerprint, header.history,
                std::string(text.substr(0, line)),
                parse_ranks(text.substr(std::min(line + 1, text.size())), size_)};
  Peer& from = peers_[peer];
  if (theirs.sequence >= from.last.sequence) from.last = theirs;
  if (header.kind == kHereNow) from.told = true;
  if (header.kind == kHereCalled) {
    from.answer = std::move(theirs);
  } else if (theirs.sequence == 0) {
    return;
  } else if (theirs.sequence > entered_) {
    const uint64_t sequence = theirs.sequence;
    from.ahead.emplace(sequence, std::move(theirs));
  } else {
    compare(peer, theirs);
  }
}

void Engine::raise(Trouble trouble) {
  // A failure that another rank reported is final; one that this rank found still has to be
  // investigated.
  if (!trouble_ || (trouble.reported && !trouble_->reported)) trouble_ = std::move(trouble);
}

void Engine::settle() {
  const Trouble trouble = *trouble_;
  if (trouble.reported) adopt(trouble);
  if (trouble.sequence > 0 && trouble.kind == Failure::kMismatch)
    mismatch(trouble.sequence, trouble.earlier, trouble.text);
  fail(trouble.kind, trouble.rank, trouble.text);
}

// A failure that another rank reported ends the operation here too.
void Engine::adopt(const Trouble& trouble) {
  for (Peer& peer : peers_) {
    if (peer.link) peer.link->drop_output();
  }
  adopted_ = Word{trouble.kind, trouble.rank, trouble.text};
  break_with(trouble.kind, trouble.rank, trouble.text);
}

// Asks all ranks for their calls at `sequence`. True if all answered.
bool Engine::ask_all(uint64_t sequence, Deadline deadline) {
  size_t open = 0;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    peer.answer.reset();
    if (!peer.link || !peer.link->lost().empty()) continue;
    FrameHeader where;
    where.type = FrameType::kWhere;
    where.key = collective_key(sequence, 0);
    link_for(r)->push(where, {});
    ++open;
  }
  while (true) {
    const auto answered = static_cast<size_t>(std::count_if(
        peers_.begin(), peers_.end(), [](const Peer& p) { return p.answer.has_value(); }));
    if (answered == open) return true;
    if (deadline.expired()) return false;
    pump(std::min<Deadline::Duration>(deadline.remaining(), std::chrono::milliseconds(20)));
    if (trouble_ && trouble_->reported) adopt(*trouble_);
  }
}

// The rank's call of collective `sequence`, as far as it has reported it; otherwise null.
const Record* Engine::called_as(int rank, uint64_t sequence) const {
  if (rank == rank_) return record(sequence);
  const Peer& peer = peers_[rank];
  if (peer.answer && peer.answer->sequence == sequence) return &*peer.answer;
  if (peer.differing && peer.differing->sequence == sequence) return &*peer.differing;
  return peer.last.sequence == sequence && sequence > 0 ? &peer.last : nullptr;
}

void Engine::mismatch(uint64_t sequence, bool earlier, const std::string& otherwise) {
  asking_ = true;
  // This question is all that remains to be done about the failure.
  const Record* noticed = record(sequence);
  const std::string noticed_at =
      noticed != nullptr ? "#" + std::to_string(sequence) + " " + noticed->text : "";
  const Deadline deadline = Deadline::after(kAskTime);
  uint64_t at = earlier ? sequence - 1 : sequence;
  std::vector<RankCall> calls;
  uint64_t fingerprint = 0;  // the fingerprint of the first of them
  while (true) {
    const bool all = ask_all(at, deadline);
    calls.clear();
    bool differ = false;
    for (int r = 0; r < size_; ++r) {
      // A rank that has not reached it, or no longer knows it, has called nothing different as far
      // as is known.
      const Record* called = called_as(r, at);
      if (called == nullptr) continue;
      if (calls.empty()) fingerprint = called->fingerprint;
      differ |= called->fingerprint != fingerprint;
      calls.push_back({r, called->sequence, called->text});
    }
    if (differ || !earlier || !all || at <= 1 || sequence - at >= kLookBack) {
      if (!differ && !otherwise.empty()) fail(Failure::kMismatch, -1, otherwise);
      if (!differ && earlier)
        fail(Failure::kMismatch, -1, mismatch_text_before(sequence - at, noticed_at));
      fail(Failure::kMismatch, -1, mismatch_text(calls, earlier ? noticed_at : std::string()));
    }
    --at;
  }
}

void Engine::fail_mismatch(uint64_t sequence, const std::string& text) {
  check_broken();
  mismatch(sequence, false, text);
}

void Engine::abort(const Breakage& why) noexcept {
  if (broken_) return;
  const auto& [kind, lost_rank, text] = why;
  try {
    for (Peer& peer : peers_) {
      if (!peer.link || !peer.link->lost().empty()) continue;
      peer.link->stop_receiving();
      peer.link->drop_output();
      push_abort(peer, {kind, lost_rank, text}, true);
      peer.link->flush();
    }
    break_with(kind, lost_rank >= 0 || kind == Failure::kTimeout ? lost_rank : rank_, text);
  } catch (...) {
    // Either broken_ is set, or memory ran out and the end of the connections has to tell the
    // peers.
  }
}

void Engine::check_interrupted() {
  if (const Breakage* why = interruption_.get()) fail(why->kind, why->rank, why->text);
}

void Engine::push_abort(Peer& peer, const Word& word, bool first_hand) {
  FrameHeader header;
  header.type = FrameType::kAbort;
  header.kind = static_cast<uint8_t>(word.kind);
  header.tag = word.lost_rank;
  header.amount = first_hand ? kFirstHand : kPassedOn;
  peer.link->push(header, word.text);
}

void Engine::fail(Failure kind, int lost_rank, const std::string& text) {
  abort({kind, lost_rank, text});
  // The messages must have arrived before the process ends, because its end may reset the
  // connections.
  const Deadline deadline = Deadline::after(kFlushTime);
  bool settled = false;
  while (!settled && !deadline.expired()) {
    settled = true;
    for (Peer& peer : peers_) {
      if (peer.link && !peer.link->settle()) settled = false;
    }
    if (!settled) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  check_broken();
  throw Error(text);
}

void Engine::break_with(Failure kind, int rank, const std::string& text) {
  try {
    throw_failure(kind, rank, text);
  } catch (...) {
    broken_ = std::current_exception();
    // The callers' memory may be freed now.
    for (Peer& peer : peers_) {
      if (!peer.link) continue;
      peer.link->stop_receiving();
      if (!peer.link->lost().empty()) continue;
      peer.current.reset();
    }
    queue_.clear();
    messages_.clear();
    throw;
  }
}

}  // namespace lockstep::inline v0::tcp
