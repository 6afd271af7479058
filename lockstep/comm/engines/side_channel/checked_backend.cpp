#include "lockstep/comm/engines/side_channel/checked_backend.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/set_once.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

using side_channel::CallRecord;
using side_channel::SideChannel;

constexpr int kSideYields = 1000;  // yields before the first sleep
constexpr auto kSideFirstSleep = std::chrono::microseconds(50);
constexpr auto kSideLongestSleep = std::chrono::microseconds(1000);
constexpr auto kSideSlice = std::chrono::milliseconds(50);  // between looks at the peers
// How long the side channel is asked which rank is gone when the engine lost one.
constexpr auto kSideBlame = std::chrono::milliseconds(500);
// How long after its peer's death a message may still arrive that it had sent before: it is in the
// system's buffers.
constexpr auto kSideLastWords = std::chrono::milliseconds(1500);
constexpr double kSideWarnAfterSeconds = 10;

bool is_message(const Call& call) {
  return call.op == Op::kSend || call.op == Op::kRecv;
}

class CheckedBackend final : public Backend {
 public:
  CheckedBackend(std::unique_ptr<Backend> inner, std::unique_ptr<SideChannel> channel, int rank)
      : inner_(std::move(inner)), channel_(std::move(channel)), rank_(rank) {}

  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  const char* refuses_caller() const noexcept override { return inner_->refuses_caller(); }

  std::unique_ptr<Request> start(const Call& call) override {
    throw_if_broken();
    auto op = std::make_shared<Operation>();
    op->call = call;
    op->record = call.record != nullptr ? *call.record : make_record(call);
    // They belong to the caller, and are gone when the engine gets the call.
    op->call.record = nullptr;
    op->call.note.text = "";
    if (is_message(call)) {
      guarded(*op, [&] { op->request = inner_->start(call); });
      return std::make_unique<CheckedRequest>(*this, std::move(op));
    }
    op->number = ++collectives_;
    queue_.push_back(op);
    progress();
    return std::make_unique<CheckedRequest>(*this, std::move(op));
  }

  void progress() override {
    if (broken_) return;
    try {
      advance();
    } catch (...) {
      note_broken();  // for waiting callers
    }
  }

  DeviceOrder* device_order() override { return inner_->device_order(); }

  void set_siblings(SiblingProgress* siblings) override { siblings_ = siblings; }

  bool lost(int rank) const override { return channel_->lost(rank); }

  Probe probe(int src, int tag) override {
    throw_if_broken();
    return inner_->probe(src, tag);
  }

  SymmetricMemory allocate_symmetric(int64_t bytes) override {
    return inner_->allocate_symmetric(bytes);
  }
  SymmetricMemory allocate_shared(int64_t bytes) override { return inner_->allocate_shared(bytes); }

  void abort(const Breakage& why) noexcept override {
    interrupt(why);
    inner_->abort(why);
  }

  bool close() noexcept override { return inner_->close(); }

  // Waits poll the channel repeatedly.
  void interrupt(const Breakage& why) noexcept override {
    if (interruption_.set(why)) channel_->fail(why.kind, why.rank, why.text);
  }

 private:
  struct Operation {
    Call call;
    CallRecord record = {};
    uint64_t number = 0;  // the collective's number; 0: a message
    bool published = false;
    bool done = false;
    // The engine's request, after the ranks have agreed.
    std::unique_ptr<Request> request = nullptr;
  };

  class CheckedRequest final : public Request {
   public:
    CheckedRequest(CheckedBackend& backend, std::shared_ptr<Operation> op)
        : backend_(backend), op_(std::move(op)) {}
    bool poll() override { return backend_.poll(*op_); }
    void wait(Deadline deadline) override { backend_.wait(*op_, deadline); }
    std::shared_ptr<Tail> order(Deadline deadline) override {
      return backend_.order(*op_, deadline);
    }

   private:
    CheckedBackend& backend_;
    std::shared_ptr<Operation> op_;
  };

  // Records that the exception being handled broke the group.
  void note_broken() {
    if (broken_) return;
    broken_ = std::current_exception();
    inner_->abort({.text = "the group is broken"});
  }

  void throw_if_broken() const {
    if (broken_) std::rethrow_exception(broken_);
  }

  // Shows, starts and finishes collectives, each in order. Throws the error that breaks the group.
  void advance() {
    for (const auto& op : queue_) {
      if (!op->published) op->published = channel_->publish(op->number, op->record);
      if (!op->published) break;
    }
    for (const auto& op : queue_) {
      if (op->request) continue;
      if (!op->published || !channel_->agreed(op->number)) break;
      guarded(*op, [&] { op->request = inner_->start(op->call); });
    }
    inner_->progress();
    while (!queue_.empty() && queue_.front()->request) {
      Operation& front = *queue_.front();
      bool over = false;
      guarded(front, [&] { over = front.request->poll(); });
      if (!over) break;
      finish(front);
    }
  }

  // Finishes the front of the queue, or a message.
  void finish(Operation& op) {
    op.done = true;
    if (!inner_->capabilities().stream_ordered) op.request.reset();
    if (op.number == 0) return;
    channel_->finished(op.number);
    queue_.pop_front();
  }

  // Runs a call of the engine; names the lost rank where the engine only knows that a rank is lost.
  template <typename F>
  void guarded(const Operation& op, const F& call) {
    try {
      call();
    } catch (const PeerLost& error) {
      blame(op, error);
    } catch (const Mismatch& error) {
      fail(Failure::kMismatch, -1, error.what());
    }
  }

  [[noreturn]] void blame(const Operation& op, const PeerLost& error) {
    const Deadline deadline = Deadline::after(kSideBlame);
    while (error.rank() < 0 && !deadline.expired()) {
      check_failed();
      check_lost(op);
      if (op.number == 0 && channel_->lost(op.call.peer)) fail_lost(op, op.call.peer);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const std::vector<int> silent = channel_->silent(op.number, 2 * kSideBlame);
    fail(Failure::kPeerLost, error.rank(),
         error.what() +
             (silent.empty() ? std::string() : "; not heard of lately: " + places_of(silent)));
  }

  void check_failed() {
    try {
      if (const Breakage* why = interruption_.get())
        throw_failure(why->kind, blamed_rank(why->kind, rank_, why->rank), why->text);
      channel_->check_failed();
    } catch (...) {
      note_broken();
      throw;
    }
  }

  void check_lost(const Operation& op) {
    if (op.number == 0) return;
    const int rank = channel_->lost_before(op.number, op.request != nullptr);
    if (rank < 0) return;
    // The last calls that it showed may have made the call possible.
    if (!op.request && channel_->missing(op.number).empty()) return;
    fail_lost(op, rank);
  }

  [[noreturn]] void fail_lost(const Operation& op, int rank) {
    check_failed();  // the rank's report of its end, if it made one
    fail(Failure::kPeerLost, rank,
         text_of(op) + " needs " + channel_->whereabouts(rank) +
             ", but its process is dead or has left the group");
  }

  [[noreturn]] void fail(Failure kind, int lost_rank, const std::string& text) {
    channel_->fail(kind, lost_rank, text);
    try {
      throw_failure(kind, lost_rank, text);
    } catch (...) {
      note_broken();
      throw;
    }
  }

  bool poll(Operation& op) {
    // The discovery by another thread does not order this thread's device work, so this thread
    // asks, too.
    if (op.done) return !op.request || op.request->poll();
    throw_if_broken();
    if (op.number == 0) {
      guarded(op, [&] { op.done = op.request->poll(); });
    } else {
      progress();
    }
    throw_if_broken();
    if (!op.done && ++polls_ % 64 == 0) {
      channel_->waiting();
      check_failed();
      check_lost(op);
    }
    return op.done;
  }

  void wait(Operation& op, Deadline deadline) {
    if (op.done) return;
    throw_if_broken();
    if (op.number == 0) return wait_message(op, deadline);
    // The earlier collectives come first, in the engine as here.
    while (!op.done) {
      const std::shared_ptr<Operation> front = queue_.front();
      if (!front->request) wait_agreed(*front, op, deadline);
      wait_engine(*front, op, deadline);
    }
  }

  // Where the engine can wait in slices, the channel is checked between them for lost ranks and
  // reports.
  void wait_message(Operation& op, Deadline deadline) {
    const bool looks = op.request->waits_again();
    Deadline next_look = Deadline::after(kSideSlice);
    std::optional<Deadline> last_words;
    while (!op.done) {
      if (!deadline.expired() && progress_siblings(siblings_)) {
        // The engine's own wait would make no progress elsewhere.
        if (!poll(op)) std::this_thread::sleep_for(kSiblingNap);
      } else if (!looks || deadline.expired()) {
        guarded(op, [&] { op.request->wait(deadline); });
        op.done = true;
      } else {
        const Deadline slice =
            Deadline::after(std::min<Deadline::Duration>(kSideSlice, deadline.remaining()));
        guarded(op, [&] {
          try {
            op.request->wait(slice);
            op.done = true;
          } catch (const Timeout&) {
            if (!slice.expired()) throw;  // the engine's own time-out, which is final
          }
        });
      }
      if (op.done || !looks || !next_look.expired()) continue;
      next_look = Deadline::after(kSideSlice);
      check_failed();
      if (!channel_->lost(op.call.peer)) continue;
      if (!last_words) last_words = Deadline::after(kSideLastWords);
      if (last_words->expired()) fail_lost(op, op.call.peer);
    }
  }

  // Waits until the engine's device has the operation.
  std::shared_ptr<Tail> order(Operation& op, Deadline deadline) {
    throw_if_broken();
    while (!op.request && !op.done) {
      const auto front =
          std::find_if(queue_.begin(), queue_.end(), [](const auto& one) { return !one->request; });
      wait_agreed(*std::shared_ptr<Operation>(*front), op, deadline);
    }
    std::shared_ptr<Tail> tail;
    if (op.request) guarded(op, [&] { tail = op.request->order(deadline); });
    return tail;
  }

  // Waits until all ranks have shown the same collective and the engine has it.
  void wait_agreed(Operation& front, const Operation& op, Deadline deadline) {
    auto sleep = kSideFirstSleep;
    double warn_at = kSideWarnAfterSeconds;
    for (int turn = 0; true; ++turn) {
      try {
        advance();
      } catch (...) {
        note_broken();
        throw;
      }
      if (front.request || front.done) return;
      const bool siblings = progress_siblings(siblings_);
      if (turn < kSideYields) {
        ::sched_yield();
        if (turn % 64 != 0) continue;
        channel_->waiting();
        check_failed();
        if (!deadline.expired()) continue;
      }
      channel_->waiting();
      check_failed();
      check_lost(front);
      if (deadline.expired()) fail_late(front, op, deadline);
      if (siblings_ != nullptr) {
        const std::string wrong =
            siblings_->report_wait(op.call, channel_->missing(front.number), /*moved=*/false);
        if (!wrong.empty()) fail(Failure::kMismatch, -1, wrong);
      }
      if (deadline.elapsed_seconds() > warn_at) {
        log_warning(text_of(front) + " has waited " + std::to_string(static_cast<int>(warn_at)) +
                    " s for " + places_of(channel_->missing(front.number)));
        warn_at *= 3;
      }
      const Deadline::Duration nap = siblings ? std::min(sleep, kSiblingNap) : sleep;
      std::this_thread::sleep_for(std::min(nap, deadline.remaining()));
      sleep = std::min(sleep * 2, kSideLongestSleep);
    }
  }

  // Waits until the engine has finished the front.
  void wait_engine(Operation& front, const Operation& op, Deadline deadline) {
    while (!front.done) {
      bool over = false;
      channel_->waiting();
      if (progress_siblings(siblings_)) {
        if (front.done) return;  // finished by a call that was started there
        guarded(front, [&] { over = front.request->poll(); });
        if (!over)
          std::this_thread::sleep_for(
              std::min<Deadline::Duration>(kSiblingNap, deadline.remaining()));
      } else {
        const Deadline slice =
            Deadline::after(std::min<Deadline::Duration>(kSideSlice, deadline.remaining()));
        guarded(front, [&] {
          try {
            front.request->wait(slice);
            over = true;
          } catch (const Timeout&) {
            // An earlier time-out is the engine's own, which is final.
            if (!slice.expired()) fail_late(front, op, deadline);
          }
        });
      }
      if (over) return finish(front);
      check_failed();
      check_lost(front);
      if (deadline.expired()) fail_late(front, op, deadline);
    }
  }

  [[noreturn]] void fail_late(const Operation& front, const Operation& op, Deadline deadline) {
    std::ostringstream text;
    text << text_of(op) << " on rank " << rank_ << " waited " << deadline.timeout_seconds()
         << " s; ";
    if (&front != &op) text << "before it " << text_of(front) << " is not over; ";
    // A rank that waits too, in this collective or an earlier one, is held up by another.
    const std::vector<int> silent = channel_->silent(front.number, deadline.timeout() / 2);
    const std::vector<int> missing = channel_->missing(front.number);
    std::vector<int> late;
    std::set_intersection(missing.begin(), missing.end(), silent.begin(), silent.end(),
                          std::back_inserter(late));
    if (late.empty()) late = silent;
    if (late.empty()) late = missing;
    if (!missing.empty()) {
      text << "not arrived: " << places_of(late) << ';';
    } else if (!late.empty()) {
      text << "all ranks have called it, but the data did not arrive; not heard of since: "
           << places_of(late) << ';';
    } else {
      text << "all ranks have called it and wait, but the data did not arrive: the network is "
              "stopped, or slow;";
    }
    fail(Failure::kTimeout, late.empty() ? -1 : late.front(),
         text.str() + " raise the time-out if they are only slow");
  }

  std::string places_of(const std::vector<int>& ranks) const {
    std::vector<std::string> texts;
    for (const int r : ranks) texts.push_back(channel_->whereabouts(r));
    return joined(texts, "; ");
  }

  static std::string text_of(const Operation& op) { return numbered(op.record); }

  std::unique_ptr<Backend> inner_;
  std::unique_ptr<SideChannel> channel_;
  int rank_;
  SiblingProgress* siblings_ = nullptr;
  uint64_t collectives_ = 0;
  int64_t polls_ = 0;
  std::deque<std::shared_ptr<Operation>> queue_;  // collectives that have not ended
  std::exception_ptr broken_;
  SetOnce<Breakage> interruption_;
};

}  // namespace

std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner,
                                              std::unique_ptr<side_channel::SideChannel> channel,
                                              int rank) {
  return std::make_unique<CheckedBackend>(std::move(inner), std::move(channel), rank);
}

}  // namespace lockstep::inline v0
