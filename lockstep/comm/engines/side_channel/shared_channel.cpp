#include "lockstep/comm/engines/side_channel/shared_channel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/engines/shm/segment.h"
#include "lockstep/core/cache_line.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/process_state.h"

namespace lockstep::inline v0::side_channel {
namespace {

constexpr uint64_t kDepth = 32;  // collectives that a rank may show ahead of the slowest one

// Written only by its rank, and read by all.
struct RankBoard {
  alignas(kLinePair) std::atomic<uint64_t> published;  // collectives shown
  alignas(kLinePair) std::atomic<uint64_t> checked;    // collectives that this rank has compared
  std::atomic<uint64_t> finished;
  std::atomic<uint32_t> departed;
  std::atomic<int32_t> pid;
  std::atomic<int64_t> waited;  // steady clock, ns: the time of its last report of a wait
  struct alignas(64) Slot {     // the compared fields lie in one cache line
    CallRecord record;
  };
  alignas(kLinePair) Slot slots[kDepth];
};

struct Layout {
  FailureBoard failure;
  RankBoard ranks[1];  // `size` of them

  static size_t bytes(int size) {
    return offsetof(Layout, ranks) + sizeof(RankBoard) * static_cast<size_t>(size);
  }
};

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

class SharedChannel final : public SideChannel {
 public:
  SharedChannel(Store& store, int rank, int size, Deadline deadline)
      : segment_(
            store, rank, size, Layout::bytes(size), [](std::byte*, void*) {}, nullptr, deadline),
        rank_(rank),
        size_(size) {
    board(rank_).pid.store(static_cast<int32_t>(::getpid()), std::memory_order_relaxed);
  }

  ~SharedChannel() override { board(rank_).departed.store(1, std::memory_order_release); }

  bool publish(uint64_t number, const CallRecord& record) override {
    if (number > slowest_ + kDepth) {
      slowest_ = number;
      for (int r = 0; r < size_; ++r)
        slowest_ = std::min(slowest_, board(r).checked.load(std::memory_order_acquire));
      if (number > slowest_ + kDepth) return false;
    }
    // A rank that copies a record meanwhile knows by `published` that it is overwritten (whereabouts()):
    // the stores below must not overtake the former call's `published`. x86 reorders no stores.
    std::atomic_thread_fence(std::memory_order_release);
    board(rank_).slots[number % kDepth].record = record;
    board(rank_).published.store(number, std::memory_order_release);
    return true;
  }

  bool agreed(uint64_t number) override {
    for (int r = 0; r < size_; ++r) {
      if (board(r).published.load(std::memory_order_acquire) < number) return false;
    }
    const CallRecord& own = record_of(rank_, number);
    bool same = true;
    for (int r = 0; r < size_; ++r) {
      const CallRecord& theirs = record_of(r, number);
      same &= theirs.fingerprint == own.fingerprint && theirs.sequence == own.sequence;
    }
    if (!same) {
      std::vector<CallRecord> records;
      for (int r = 0; r < size_; ++r) records.push_back(record_of(r, number));
      const std::string text = mismatch_text(records);
      fail(Failure::kMismatch, -1, text);
      throw Mismatch(text);
    }
    board(rank_).checked.store(number, std::memory_order_release);
    return true;
  }

  void finished(uint64_t number) override {
    board(rank_).finished.store(number, std::memory_order_release);
  }

  void check_failed() override {
    const auto report = layout().failure.read();
    if (!report) return;
    throw_failure(report->kind, report->rank,
                  report->reporter == rank_
                      ? report->text
                      : "rank " + std::to_string(report->reporter) + " reported: " + report->text);
  }

  void waiting() override { board(rank_).waited.store(now_ns(), std::memory_order_relaxed); }

  std::vector<int> missing(uint64_t number) const override {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      if (board(r).published.load(std::memory_order_acquire) < number) ranks.push_back(r);
    }
    return ranks;
  }

  std::vector<int> silent(uint64_t number, Deadline::Duration silence) const override {
    const int64_t since = now_ns() - silence.count();
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      const RankBoard& state = board(r);
      if (r == rank_ || state.finished.load(std::memory_order_acquire) >= number) continue;
      if (state.waited.load(std::memory_order_relaxed) <= since ||
          !stopped_by(state.pid.load(std::memory_order_relaxed)).empty())
        ranks.push_back(r);
    }
    return ranks;
  }

  int lost_before(uint64_t number, bool agreed) const override {
    for (int r = 0; r < size_; ++r) {
      const auto behind = [&] {
        const auto& done = agreed ? board(r).finished : board(r).published;
        return done.load(std::memory_order_acquire) < number;
      };
      // Its last published call counts: look again once the rank is known to be gone.
      if (r != rank_ && behind() && lost(r) && behind()) return r;
    }
    return -1;
  }

  std::string whereabouts(int rank) const override {
    const RankBoard& state = board(rank);
    std::string text = "rank " + std::to_string(rank) + " (" +
                       pid_words(state.pid.load(std::memory_order_relaxed)) + ")";
    uint64_t published = state.published.load(std::memory_order_acquire);
    if (published == 0) return text + ", which has called no collective yet";
    while (true) {
      const CallRecord record = record_of(rank, published);
      std::atomic_thread_fence(std::memory_order_acquire);
      // The call after `last` may be overwriting its place.
      const uint64_t last = state.published.load(std::memory_order_acquire);
      if (last + 1 < published + kDepth)
        return text + ", whose last collective was " + numbered(record);
      published = last;
    }
  }

  bool lost(int rank) const override {
    return rank != rank_ &&
           (board(rank).departed.load(std::memory_order_acquire) != 0 || segment_.hung_up(rank));
  }

  void fail(Failure kind, int lost_rank, const std::string& text) noexcept override {
    layout().failure.report(kind, rank_, lost_rank, text);
  }

 private:
  Layout& layout() const { return *reinterpret_cast<Layout*>(segment_.memory()); }
  RankBoard& board(int rank) const { return layout().ranks[rank]; }
  const CallRecord& record_of(int rank, uint64_t number) const {
    return board(rank).slots[number % kDepth].record;
  }

  shm::Segment segment_;
  int rank_;
  int size_;
  uint64_t slowest_ = 0;  // a lower bound of every rank's `checked`
};

}  // namespace

std::unique_ptr<SideChannel> make_shared_channel(Store& store, int rank, int size,
                                                 Deadline deadline) {
  return std::make_unique<SharedChannel>(store, rank, size, deadline);
}

}  // namespace lockstep::inline v0::side_channel
