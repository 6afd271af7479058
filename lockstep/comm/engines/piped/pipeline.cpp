#include "lockstep/comm/engines/piped/pipeline.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/comm/engines/piped/pieces.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::piped {
namespace {

constexpr auto kLook = std::chrono::microseconds(50);  // between two looks at the device
constexpr auto kDeviceEnds = std::chrono::seconds(2);  // afterwards the device counts as stuck

}  // namespace

Transfer::Transfer(const Call& call, DataPath& path)
    : call_(call),
      record_(call.record != nullptr ? *call.record : make_record(call)),
      note_(call.note.text) {
  call_.record = &record_;
  call_.note.text = note_.c_str();
  for (std::unique_ptr<Part>& part : path.parts_of(call_))
    steps_.push_back({.part = std::move(part)});
}

const std::shared_ptr<const device::Event>& Transfer::done() const {
  if (error_) std::rethrow_exception(error_);
  return done_;
}

std::string Transfer::text() const {
  return "#" + std::to_string(record_.sequence) + " " + trace::describe(record_);
}

Pipeline::Pipeline(std::unique_ptr<Backend> host, std::unique_ptr<DataPath> path,
                   c10::Device device, const SetOnce<Breakage>& interruption)
    : host_(std::move(host)), path_(std::move(path)), device_(device), interruption_(interruption) {
  host_->set_siblings(&inside_);
}

Pipeline::~Pipeline() {
  // A transfer that still has an owner must not keep objects of the engine or the path.
  for (const Transfers* transfers : {&collectives_, &messages_, &failed_}) {
    for (const auto& transfer : *transfers) transfer->steps_.clear();
  }
}

void Pipeline::add(std::shared_ptr<Transfer> transfer) {
  waiting_ += static_cast<int64_t>(transfer->steps_.size());
  ++steps_;
  Transfers& beside = is_message(transfer->call_) ? messages_ : collectives_;
  beside.push_back(std::move(transfer));
}

// For the exception that is being handled: returns a lost rank's error, which may be why the device
// refuses the work now, or the exception itself.
std::exception_ptr Pipeline::why_not() const noexcept {
  try {
    path_->check(*host_);
  } catch (...) {
    return std::current_exception();
  }
  return std::current_exception();
}

bool Pipeline::turn() noexcept {
  bool more = false;
  try {
    const at::NoGradGuard no_grad;
    more = path_->give_back();
    begin_all();
    hand_over_all();
    host_->progress();
    take_all();
  } catch (...) {
    fail_all(why_not());  // the device reports an error
  }
  return more || !collectives_.empty() || !messages_.empty();
}

bool Pipeline::begin(Transfer::Step& step) {
  if (!step.begun) step.begun = step.part->begin();
  return step.begun;
}

void Pipeline::begin_all() {
  for (const auto& message : messages_) {
    for (Transfer::Step& step : message->steps_) begin(step);
  }
  for (const auto& collective : collectives_) {
    for (Transfer::Step& step : collective->steps_) {
      if (!begin(step)) return;
    }
  }
}

void Pipeline::hand_over_all() {
  // A failed transfer is removed from the list.
  bool sends = true;
  for (const auto& message : Transfers(messages_)) {
    const bool is_send = message->call_.op == Op::kSend;
    Transfer::Step& step = message->steps_.front();
    if (step.request || (is_send && !sends)) continue;
    if (!hand_over(message, step) && is_send) sends = false;  // sends must not overtake each other
  }
  for (const auto& collective : Transfers(collectives_)) {
    for (Transfer::Step& step : collective->steps_) {
      if (!step.request && !hand_over(collective, step)) return;
      if (collective->settled()) break;  // it failed
      if (step.part->alone()) return;
    }
  }
}

// Returns false if it is not ready yet.
bool Pipeline::hand_over(const std::shared_ptr<Transfer>& transfer, Transfer::Step& step) {
  if (!step.begun || !step.part->ready()) return false;
  try {
    step.request = host_->start(step.part->next());
    --waiting_;
    ++steps_;
  } catch (...) {
    fail(transfer, std::current_exception());
  }
  return true;
}

void Pipeline::take_all() {
  for (const auto& message : Transfers(messages_)) take(message);
  take_collectives();
}

void Pipeline::take_collectives() {
  while (!collectives_.empty() && take(std::shared_ptr<Transfer>(collectives_.front()))) {
  }
}

// Returns whether it is settled. During a wait for a collective, which is then the first one, more
// calls are handed over.
bool Pipeline::take(const std::shared_ptr<Transfer>& transfer) {
  while (!transfer->settled()) {
    Transfer::Step& step = transfer->steps_.front();
    if (!step.request) {
      if (is_message(transfer->call_) || !hand_over(transfer, step)) return false;
      continue;
    }
    try {
      if (!step.request->poll()) return false;
    } catch (...) {
      fail(transfer, std::current_exception());
      return true;
    }
    advance(transfer);
  }
  return true;
}

// The first part whose call the engine has finished.
void Pipeline::advance(const std::shared_ptr<Transfer>& transfer) {
  Transfer::Step& step = transfer->steps_.front();
  step.request = nullptr;
  ++waiting_;
  ++steps_;
  auto done = step.part->advance();
  if (!done) return;
  --waiting_;
  transfer->steps_.pop_front();
  if (!transfer->steps_.empty()) return;
  transfer->done_ = std::move(done);
  std::erase(is_message(transfer->call_) ? messages_ : collectives_, transfer);
  transfer->settled_.store(true, std::memory_order_release);
}

void Pipeline::fail(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) noexcept {
  for (const Transfer::Step& step : transfer->steps_) waiting_ -= step.request ? 0 : 1;
  ++steps_;
  failed_.push_back(transfer);
  std::erase(is_message(transfer->call_) ? messages_ : collectives_, transfer);
  transfer->error_ = std::move(error);
  transfer->settled_.store(true, std::memory_order_release);
}

void Pipeline::fail_all(const std::exception_ptr& error) noexcept {
  while (!messages_.empty()) fail(std::shared_ptr<Transfer>(messages_.front()), error);
  while (!collectives_.empty()) fail(std::shared_ptr<Transfer>(collectives_.front()), error);
}

// The transfer whose end the engine must wait for, so that this one progresses; null: the engine
// has no part of it.
std::shared_ptr<Transfer> Pipeline::in_the_way(const Transfer& transfer) const {
  const Transfers& line = is_message(transfer.call_) ? messages_ : collectives_;
  for (const auto& one : line) {
    const bool self = one.get() == &transfer;
    // The engine runs collectives in order, and messages in any order.
    if ((self || &line == &collectives_) && one->steps_.front().request) return one;
    if (self) break;
  }
  return nullptr;
}

void Pipeline::drive(Transfer& transfer, Deadline deadline) {
  while (!transfer.settled()) {
    turn();
    if (transfer.settled()) return;
    if (const Breakage* why = interruption_.get())
      throw PeerLost("this rank gave up in " + transfer.text() + ": " + why->text, -1);
    if (const auto first = in_the_way(transfer)) {
      try {
        waits_for_message_ = is_message(first->call_);
        first->steps_.front().request->wait(deadline);
        const at::NoGradGuard no_grad;
        if (!first->settled()) advance(first);
      } catch (...) {
        if (!first->settled()) fail(first, std::current_exception());
      }
      continue;
    }
    if (deadline.expired()) {
      std::ostringstream text;
      text << transfer.text() << " waited " << deadline.timeout_seconds() << " s for "
           << device_.str()
           << ", which is not through with what makes its input; raise the time-out if it is only "
              "slow";
      throw Timeout(text.str());
    }
    progress_siblings(siblings_);
    std::this_thread::sleep_for(std::min<Deadline::Duration>(kLook, deadline.remaining()));
  }
}

void Pipeline::give_up(const std::exception_ptr& error) noexcept {
  fail_all(error);
  try {
    path_->block(device::current_stream(device_));
  } catch (const std::exception&) {  // the device has failed and runs nothing
  }
}

bool Pipeline::close() noexcept {
  if (closed_) return *closed_;
  // The streams finish the work that they were given.
  const Deadline soon = Deadline::after(kDeviceEnds);
  bool through = false;
  try {
    while (!(through = path_->through(*host_)) && !soon.expired())
      std::this_thread::sleep_for(kLook);
  } catch (const std::exception&) {  // the device has failed and runs nothing
    through = true;
  }
  closed_ = host_->close() && through;
  return *closed_;
}

bool Pipeline::Inside::pending() const noexcept {
  return pipeline_.waiting_ > 0 ||
         (pipeline_.siblings_ != nullptr && pipeline_.siblings_->pending());
}

void Pipeline::Inside::move() noexcept {
  try {
    const at::NoGradGuard no_grad;
    // Other ranks may wait for their memory. During a wait for a collective, no earlier one exists.
    if (pipeline_.waits_for_message_) pipeline_.take_collectives();
    pipeline_.path_->give_back();
    pipeline_.begin_all();
    pipeline_.hand_over_all();
  } catch (...) {  // the device reports an error
    pipeline_.fail_all(pipeline_.why_not());
  }
  progress_siblings(pipeline_.siblings_);
}

std::string Pipeline::Inside::report_wait(const Call& call, const std::vector<int>& awaited,
                                          bool moved) noexcept {
  if (pipeline_.siblings_ == nullptr) return "";
  // For a collective, the wait is for the first one, of which this is a part.
  const bool is_part = !is_message(call) && !pipeline_.collectives_.empty();
  return pipeline_.siblings_->report_wait(is_part ? pipeline_.collectives_.front()->call_ : call,
                                          awaited, moved);
}

}  // namespace lockstep::inline v0::piped
