// What a communicator does for its pending operations while other calls wait, and what it tells the job of them.
#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/text.h"
#include "lockstep/core/ticks.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {

void Communicator::Impl::progress() {
  check_caller("progress");
  const Entry entry(*this);
  if (broken_.get() == nullptr && !pending_ops_.empty()) {
    backend_->progress();
    note_ends();
  }
  progress_siblings(this);
}

// Whether the engine has finished it. Its wait reports the error.
bool Communicator::Impl::over(PendingOp& operation) noexcept {
  if (operation.over || !operation.request) return true;
  try {
    operation.over = operation.request->poll();
  } catch (...) {
    operation.over = true;
    return true;
  }
  if (operation.over && options_.board) {
    options_.board->end(options_.board_rank, operation.call, ticks());
    operation.end_noted = true;
  }
  return operation.over;
}

void Communicator::Impl::note_ends() noexcept {
  if (!options_.board || !options_.board->watches_ends()) return;
  // What ends on a device's stream is watched there, and asks nothing while it is captured.
  for (const auto& operation : pending_ops_)
    if (!operation->ordered && operation->capture == 0) over(*operation);
}

void Communicator::Impl::abandon(uint64_t call) noexcept {
  if (options_.board) options_.board->abandon(options_.board_rank, call, ticks());
}

void Communicator::Impl::abandon_pending_ops() noexcept {
  for (const auto& operation : pending_ops_) abandon(operation->call);
  if (watch_) watch_->each_call([this](uint64_t call) { abandon(call); });
}

bool Communicator::Impl::marks_calls() const noexcept {
  return options_.board && options_.board->marks_calls();
}

void Communicator::Impl::note_pending_ops() {
  if (broken_.get() != nullptr) abandon_pending_ops();
  const bool under_way = broken_.get() == nullptr &&
                         std::any_of(pending_ops_.begin(), pending_ops_.end(),
                                     [](const auto& operation) { return !operation->over; });
  if (!job_ || entered_ == under_way) return;
  entered_ = !entered_;
  if (entered_)
    job_->enter(*this);
  else
    job_->leave(*this);
}

bool Communicator::Impl::pending() const noexcept {
  return job_ && job_->entered() > (entered_ ? 1 : 0);
}

void Communicator::Impl::move() noexcept {
  job_->move_others(*this);
}

std::string Communicator::Impl::report_wait(const Call& call, const std::vector<int>& awaited,
                                            bool moved) noexcept {
  constexpr auto kFirstLook = std::chrono::seconds(1);
  if (call.op == Op::kSend || call.op == Op::kRecv) return "";
  const auto now = std::chrono::steady_clock::now();
  if (blocked_on_ != call.sequence) {
    blocked_on_ = call.sequence;
    stands_since_ = now;
    look_at_ = now + kFirstLook;
    moved_ = false;
  }
  moved_ |= moved;
  if (now < look_at_) return "";
  try {
    WaitState own;
    own.group = group();
    own.number = call.sequence;
    own.seconds = std::chrono::duration<double>(now - stands_since_).count();
    own.awaited = in_job(*options_.origin, awaited);
    own.text = numbered(make_record(call)) + place() + " of the group of ranks " +
               joined(options_.origin->members);
    auto [wrong, pause] = job_->report_wait(std::move(own), std::exchange(moved_, false));
    look_at_ = std::chrono::steady_clock::now() + pause;
    return std::move(wrong);
  } catch (const std::exception&) {  // out of memory
    return "";
  }
}

const std::string& Communicator::Impl::group() const noexcept {
  return options_.origin->name;
}

bool Communicator::Impl::move_if_free() noexcept {
  int found = kNobody;
  // A thread of another communicator's may not be one of this engine's.
  if (backend_->refuses_caller() != nullptr) return true;
  if (!inside_.compare_exchange_strong(found, kSibling, std::memory_order_acq_rel)) return true;
  backend_->progress();
  entered_ = broken_.get() == nullptr &&
             std::any_of(pending_ops_.begin(), pending_ops_.end(),
                         [this](const auto& operation) { return !over(*operation); });
  const bool more = entered_;
  inside_.store(kNobody, std::memory_order_release);
  return more;
}

}  // namespace lockstep::inline v0
