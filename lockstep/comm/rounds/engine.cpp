#include "lockstep/comm/rounds/engine.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::rounds {
namespace {

constexpr int kYields = 1000;                                // before the first sleep
constexpr auto kFirstSleep = std::chrono::microseconds(50);  // doubled up to kLongestSleep
constexpr auto kLongestSleep = std::chrono::microseconds(1000);
constexpr double kWarnAfterSeconds = 10;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace

struct Engine::Operation {
  Call call;
  Program program;
  CallHeader header;
  uint64_t base = 0;       // the region's round at which it starts
  int64_t own_rounds = 0;  // that this rank's own data needs
  int64_t produced = 0;
  int64_t consumed = 0;
  bool started = false;
  bool total_known = false;
  bool done = false;
};

// T is an Operation or a Message: what has a call and becomes done.
template <typename T>
class Engine::PendingRequest final : public Request {
 public:
  PendingRequest(Engine& engine, std::shared_ptr<T> pending)
      : engine_(engine), pending_(std::move(pending)) {}
  bool poll() override { return engine_.poll(pending_->done, pending_->call, ++polls_ % 64 == 0); }
  void wait(Deadline deadline) override { engine_.wait(pending_->done, pending_->call, deadline); }

 private:
  Engine& engine_;
  std::shared_ptr<T> pending_;
  int polls_ = 0;
};

Engine::Engine(Region region, int rank, IsDead is_dead)
    : region_(region),
      rank_(rank),
      is_dead_(std::move(is_dead)),
      spins_(region.shape().size <= usable_cpu_count() ? 2000 : 50),
      channels_(region, rank) {}

Engine::~Engine() {
  region_.rank(rank_).departed.store(1, std::memory_order_release);
}

std::unique_ptr<Request> Engine::start(const Call& call) {
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  if (call.op == Op::kSend || call.op == Op::kRecv) {
    auto message = channels_.post(call);
    progress();
    return std::make_unique<PendingRequest<Message>>(*this, std::move(message));
  }
  auto op = std::make_shared<Operation>();
  op->call = call;
  op->program = make_program(call, rank_, region_);
  op->own_rounds = op->program.rounds;
  op->header.sequence = call.sequence;
  op->header.fingerprint = fingerprint(call);
  op->header.rounds = op->program.rounds;
  const std::string text = describe(call);
  text.copy(op->header.text, sizeof op->header.text - 1);
  previous_.copy(op->header.previous, sizeof op->header.previous - 1);
  op->header.history = history_;
  history_ = (history_ ^ op->header.fingerprint) * 0x9e3779b97f4a7c15ULL + 1;
  previous_ = text;
  queue_.push_back(op);
  progress();
  return std::make_unique<PendingRequest<Operation>>(*this, std::move(op));
}

void Engine::progress() {
  if (broken_) return;
  try {
    advance();
  } catch (...) {
    // The failure belongs to whoever waits; fail() has recorded it in broken_.
    if (!broken_) broken_ = std::current_exception();
  }
}

bool Engine::advance() {
  bool moved = false;
  try {
    moved = channels_.progress();
  } catch (const Mismatch& error) {
    fail(AbortKind::kMismatch, -1, error.what());
  }
  while (!queue_.empty()) {
    const std::shared_ptr<Operation> op = queue_.front();
    moved |= advance(*op);
    if (!op->done) break;
    queue_.pop_front();
  }
  return moved;
}

bool Engine::advance(Operation& op) {
  if (!op.started) {
    op.base = next_round_;
    op.total_known = !op.program.dynamic;
    op.started = true;
  }
  bool moved = false;
  for (;;) {
    const bool produced = produce(op);
    const bool consumed = consume(op);
    if (!produced && !consumed) break;
    moved = true;
  }
  if (op.consumed == op.program.rounds && op.total_known) {
    next_round_ = op.base + static_cast<uint64_t>(op.program.rounds);
    op.done = true;
    moved = true;
  }
  return moved;
}

bool Engine::produce(Operation& op) {
  if (op.produced >= op.program.rounds) return false;
  const uint64_t round = op.base + static_cast<uint64_t>(op.produced);
  if (!slot_is_free(round)) return false;
  CallHeader& header = region_.slot_header(rank_, round);
  header = op.header;
  header.round = op.produced;
  if (op.program.produce && op.produced < op.own_rounds) {
    op.program.produce(op.produced, region_.slot_payload(rank_, round));
  }
  region_.rank(rank_).published.store(round + 1, std::memory_order_release);
  ++op.produced;
  return true;
}

// A slot may be written again once every rank has read what it held kSlots rounds ago.
bool Engine::slot_is_free(uint64_t round) {
  if (round < slowest_ + kSlots) return true;
  uint64_t slowest = UINT64_MAX;
  for (int r = 0; r < region_.shape().size; ++r) {
    slowest = std::min(slowest, region_.rank(r).consumed.load(std::memory_order_acquire));
  }
  slowest_ = slowest;
  return round < slowest_ + kSlots;
}

bool Engine::reads(const Operation& op, int rank) const {
  if (rank == rank_) return false;
  switch (op.program.reads) {
    case Reads::kNobody:
      return false;
    case Reads::kRoot:
      return rank == op.call.root;
    case Reads::kEverybody:
      return true;
  }
  return false;
}

bool Engine::consume(Operation& op) {
  if (op.consumed >= op.produced) return false;
  const uint64_t round = op.base + static_cast<uint64_t>(op.consumed);
  for (int r = 0; r < region_.shape().size; ++r) {
    if (reads(op, r) && region_.rank(r).published.load(std::memory_order_acquire) <= round)
      return false;
  }
  if (op.consumed == 0) check_headers(op);
  if (!op.total_known) {
    for (int r = 0; r < region_.shape().size; ++r) {
      op.program.rounds = std::max(op.program.rounds, region_.slot_header(r, round).rounds);
    }
    op.total_known = true;
  }
  if (op.program.consume) op.program.consume(op.consumed, round);
  ++op.consumed;
  region_.rank(rank_).consumed.store(round + 1, std::memory_order_release);
  return true;
}

// A rank checks those whose slots it reads. What nobody reads (two ranks that both think they are
// the root) shows in the history that the next call carries.
void Engine::check_headers(const Operation& op) {
  bool same = true;
  bool same_history = true;
  for (int r = 0; r < region_.shape().size; ++r) {
    if (!reads(op, r)) continue;
    const CallHeader& theirs = region_.slot_header(r, op.base);
    same &= theirs.fingerprint == op.header.fingerprint && theirs.sequence == op.header.sequence &&
            theirs.round == 0;
    same_history &= theirs.history == op.header.history;
  }
  if (!same || !same_history) report_mismatch(op, same);
}

void Engine::report_mismatch(const Operation& op, bool earlier) {
  // Group the ranks by what they called.
  std::vector<std::pair<std::string, std::string>> groups;  // call, ranks
  for (int r = 0; r < region_.shape().size; ++r) {
    if (r != rank_ && !reads(op, r)) continue;
    const CallHeader& header = region_.slot_header(r, op.base);
    const std::string call = earlier
                                 ? "#" + std::to_string(header.sequence - 1) + " " + header.previous
                                 : "#" + std::to_string(header.sequence) + " " + header.text;
    const auto it =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == call; });
    if (it == groups.end())
      groups.emplace_back(call, std::to_string(r));
    else
      it->second += ", " + std::to_string(r);
  }
  std::string text = "ranks called different collectives";
  if (earlier) text += ", noticed at #" + std::to_string(op.header.sequence) + " " + op.header.text;
  text += ":";
  for (const auto& [call, ranks] : groups) {
    text +=
        (ranks.find(',') == std::string::npos ? " rank " : " ranks ") + ranks + ": " + call + ";";
  }
  fail(AbortKind::kMismatch, -1,
       text + " every rank must call the same operations in the same order");
}

bool Engine::poll(const bool& done, const Call& call, bool check_peers) {
  if (done) return true;
  progress();
  if (done) return true;
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  if (check_peers) check_lost(done, call);
  return done;
}

Probe Engine::probe(int src, int tag) {
  progress();
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  if (channels_.probe(src, tag)) return Probe::kMessage;
  // All ranks at every 64th question about each.
  if (++probes_ / region_.shape().size % 64 != 0) return Probe::kNothing;
  const bool departed = region_.rank(src).departed.load(std::memory_order_acquire) != 0;
  const bool dead = !departed && is_dead_ && is_dead_(src);
  if (!departed && !dead) return Probe::kNothing;
  // What it sent before it went is still there.
  if (channels_.probe(src, tag)) return Probe::kMessage;
  if (departed) return Probe::kLeft;
  throw PeerLost(
      "a receive from any rank may wait for " + whereabouts(src) + ", but its process is dead",
      src);
}

void Engine::wait(const bool& done, const Call& call, Deadline deadline) {
  int idle = 0;
  auto sleep = kFirstSleep;
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
      sleep = kFirstSleep;
      continue;
    }
    ++idle;
    if (idle < spins_) {
      pause();
      continue;
    }
    if (idle < spins_ + kYields) {
      ::sched_yield();
      if (idle % 64 == 0) {
        check_aborted();
        // On a busy machine every yield may last a time slice.
        if (deadline.expired()) idle = spins_ + kYields;
      }
      continue;
    }
    check_aborted();
    check_lost(done, call);
    if (done) return;
    if (deadline.expired()) {
      std::ostringstream text;
      text << "#" << call.sequence << " " << describe(call) << " on rank " << rank_ << " waited "
           << deadline.timeout_seconds() << " s; not arrived:";
      for (const int r : awaited(call)) text << " " << whereabouts(r) << ";";
      fail(AbortKind::kTimeout, -1, text.str() + " raise the time-out if they are only slow");
    }
    if (deadline.elapsed_seconds() > warn_at) {
      std::vector<std::string> late;
      for (const int r : awaited(call)) late.push_back(whereabouts(r));
      std::ostringstream text;
      text << "#" << call.sequence << " " << describe(call) << " has waited "
           << static_cast<int>(warn_at) << " s for " << join(late, "; ");
      log_warning(text.str());
      warn_at *= 3;
    }
    std::this_thread::sleep_for(std::min<Deadline::Duration>(sleep, deadline.remaining()));
    sleep = std::min(sleep * 2, kLongestSleep);
  }
}

// The ranks that `call` cannot go on without.
std::vector<int> Engine::awaited(const Call& call) const {
  if (call.op == Op::kSend || call.op == Op::kRecv) return {call.peer};
  std::vector<int> ranks;
  if (queue_.empty()) return ranks;
  const Operation& op = *queue_.front();
  const bool slots_full = op.produced < op.program.rounds &&
                          op.base + static_cast<uint64_t>(op.produced) >= slowest_ + kSlots;
  const uint64_t round = op.base + static_cast<uint64_t>(op.consumed);
  for (int r = 0; r < region_.shape().size; ++r) {
    if (r == rank_) continue;
    const RankState& state = region_.rank(r);
    const bool unread = reads(op, r) && state.published.load(std::memory_order_acquire) <= round;
    const bool blocks_slot =
        slots_full && state.consumed.load(std::memory_order_acquire) + kSlots <=
                          op.base + static_cast<uint64_t>(op.produced);
    if (unread || blocks_slot) ranks.push_back(r);
  }
  return ranks;
}

std::string Engine::whereabouts(int rank) const {
  const RankState& state = region_.rank(rank);
  std::string text = "rank " + std::to_string(rank);
  if (const int pid = state.pid.load(std::memory_order_relaxed); pid != 0)
    text += " (pid " + std::to_string(pid) + ")";
  const uint64_t published = state.published.load(std::memory_order_acquire);
  if (published == 0) return text + ", which has called no collective yet";
  const CallHeader& header = region_.slot_header(rank, published - 1);
  return text + ", whose last collective was #" + std::to_string(header.sequence) + " " +
         std::string(header.text, ::strnlen(header.text, sizeof header.text));
}

void Engine::check_aborted() {
  const auto kind =
      static_cast<AbortKind>(region_.header().abort_kind.load(std::memory_order_acquire));
  if (kind == AbortKind::kNone || kind == AbortKind::kPending) return;
  const RegionHeader& header = region_.header();
  const std::string text =
      "rank " + std::to_string(header.abort_rank) + " reported: " + header.abort_text;
  try {
    switch (kind) {
      case AbortKind::kTimeout:
        throw Timeout(text);
      case AbortKind::kMismatch:
        throw Mismatch(text);
      default:
        throw PeerLost(text, header.lost_rank >= 0 ? header.lost_rank : header.abort_rank);
    }
  } catch (...) {
    broken_ = std::current_exception();
    throw;
  }
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
    // What it sent before it went is still there: only what is missing now is missing for good.
    progress();
    if (broken_) std::rethrow_exception(broken_);
    if (done) return;
    const std::vector<int> still = awaited(call);
    if (std::find(still.begin(), still.end(), r) == still.end()) continue;
    fail(AbortKind::kPeerLost, r,
         "#" + std::to_string(call.sequence) + " " + describe(call) + " needs " + whereabouts(r) +
             ", but " + (departed ? "it has left the group" : "its process is dead"));
  }
}

void Engine::abort(AbortKind kind, int lost_rank, const std::string& text) noexcept {
  RegionHeader& header = region_.header();
  auto expected = static_cast<uint32_t>(AbortKind::kNone);
  if (!header.abort_kind.compare_exchange_strong(
          expected, static_cast<uint32_t>(AbortKind::kPending), std::memory_order_acq_rel)) {
    return;
  }
  header.abort_rank = rank_;
  header.lost_rank = lost_rank;
  const size_t n = std::min(text.size(), sizeof header.abort_text - 1);
  std::memcpy(header.abort_text, text.data(), n);
  header.abort_text[n] = '\0';
  header.abort_kind.store(static_cast<uint32_t>(kind), std::memory_order_release);
}

void Engine::fail(AbortKind kind, int lost_rank, const std::string& text) {
  abort(kind, lost_rank, text);
  try {
    switch (kind) {
      case AbortKind::kTimeout:
        throw Timeout(text);
      case AbortKind::kMismatch:
        throw Mismatch(text);
      default:
        throw PeerLost(text, lost_rank);
    }
  } catch (...) {
    broken_ = std::current_exception();
    throw;
  }
}

}  // namespace lockstep::rounds
