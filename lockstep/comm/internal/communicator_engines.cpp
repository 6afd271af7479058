// The end of a communicator, and the relation of its two parts where it has two engines.
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/comm/groups/giving_up.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"
#include "lockstep/core/mutex.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {
namespace {

constexpr auto kAbortAtMost = std::chrono::seconds(1);

}  // namespace

CommunicatorStats Communicator::Impl::stats() const {
  CommunicatorStats all = counters_.read();
  if (host_) add_calls(all, host_->counters_.read());
  return all;
}

std::string Communicator::Impl::place() const {
  if (beside_ == nullptr) return "";
  return device_.is_cpu() ? " on the host" : " on " + device_.str();
}

void Communicator::Impl::name_ranks(std::vector<std::string> titles) {
  if (host_) host_->name_ranks(titles);
  if (options_.origin) options_.origin->titles = std::move(titles);
}

bool Communicator::Impl::lost(int rank) const {
  return backend_->lost(rank) || (host_ && host_->lost(rank));
}

std::exception_ptr Communicator::Impl::set_broken() noexcept {
  const std::exception_ptr found = std::current_exception();
  std::exception_ptr error =
      options_.origin ? named_in_job(found, options_.origin->members, options_.origin->titles)
                      : found;
  const bool first = broken_.set(error);  // otherwise abort() was first: this rank's own doing
  if (!first && broken_with_) error = *broken_.get();
  note_pending_ops();
  const std::string text = exception_text(error);
  const Breakage why = breakage_of(found, exception_text(found));  // with ranks of the group
  // Releases waits for the device, on every stream.
  if (order_ != nullptr) backend_->abort(why);
  if (beside_ != nullptr) beside_->break_with(error, why);
  if (std::exchange(told_, true)) return error;
  if (first && options_.board) {
    show_giving_up(*options_.board, options_.board_rank, error,
                   options_.origin ? options_.origin->members : std::vector<int>());
  }
  if (options_.on_broken) options_.on_broken(text);
  return error;
}

void Communicator::Impl::break_with(const std::exception_ptr& error, const Breakage& why) noexcept {
  broken_with_ = true;  // before the thread that is inside learns of it
  if (broken_.set(error)) end_engine(why);
}

void Communicator::Impl::end_engine(const Breakage& why) noexcept {
  backend_->interrupt(why);
  const Deadline deadline = Deadline::after(kAbortAtMost);
  for (int found = kNobody;
       !inside_.compare_exchange_strong(found, kCaller, std::memory_order_acq_rel);
       found = kNobody) {
    if (deadline.expired()) return;  // interrupt() must suffice
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  backend_->abort(why);
  note_pending_ops();
  inside_.store(kNobody, std::memory_order_release);
}

void Communicator::Impl::add_derived(const std::shared_ptr<Impl>& one, Derived kind) {
  const MutexLock lock(derived_mutex_);
  std::erase_if(derived_, [](const DerivedImpl& other) { return other.impl.expired(); });
  derived_.push_back({one, kind});
}

void Communicator::Impl::throw_if_any_broken() {
  throw_if_broken();
  const MutexLock lock(derived_mutex_);
  for (const DerivedImpl& one : derived_) {
    if (one.kind != Derived::kDuplicate) continue;
    if (const auto duplicate = one.impl.lock()) duplicate->throw_if_any_broken();
  }
}

void Communicator::Impl::abort(const std::string& reason, Reach reach) noexcept {
  {
    // A library that works on a duplicate counts as inside, too.
    const MutexLock lock(derived_mutex_);
    for (const DerivedImpl& one : derived_) {
      if (reach == Reach::kDuplicates && one.kind != Derived::kDuplicate) continue;
      if (const auto group = one.impl.lock()) group->abort(reason, reach);
    }
  }
  const auto error = std::make_exception_ptr(
      PeerLost("this rank aborted the communicator: " + reason, topology_.rank));
  broken_.set(error);
  if (host_) {
    host_->broken_.set(error);
    host_->end_engine({.text = reason});
  }
  end_engine({.text = reason});
}

}  // namespace lockstep::inline v0
