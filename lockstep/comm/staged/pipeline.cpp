#include "lockstep/comm/staged/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/comm/device_engine.h"
#include "lockstep/comm/failure.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::staged {
namespace {

constexpr auto kLook = std::chrono::microseconds(50);  // between two looks at the device
constexpr auto kCopiesEnd = std::chrono::seconds(2);   // after which a device is taken for stuck

bool is_message(const Call& call) {
  return call.op == Op::kSend || call.op == Op::kRecv;
}

// What the engine says of a piece, with the call that it is of before it.
std::exception_ptr of_whole(const std::exception_ptr& error, const std::string& whole) noexcept {
  try {
    const std::string text = "in a piece of " + whole + ": ";
    try {
      std::rethrow_exception(error);
    } catch (const LateRank& late) {
      throw LateRank(text + late.what(), late.rank());
    } catch (const Timeout& late) {
      throw Timeout(text + late.what());
    } catch (const PeerLost& lost) {
      throw PeerLost(text + lost.what(), lost.rank());
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Transfer::Transfer(const Call& call, std::vector<Piece> pieces)
    : call_(call),
      record_(call.record != nullptr ? *call.record : make_record(call)),
      note_(call.note.text),
      in_pieces_(pieces.size() > 1) {
  for (Piece& piece : pieces) {
    piece.call.record = &record_;
    piece.call.note.text = note_.c_str();
    piece.call.after = nullptr;
    parts_.push_back({.piece = std::move(piece)});
  }
}

const std::shared_ptr<const device::Event>& Transfer::done() const {
  if (error_) std::rethrow_exception(error_);
  return done_;
}

std::string Transfer::text() const {
  return "#" + std::to_string(record_.sequence) + " " + trace::describe(record_);
}

Pipeline::Pipeline(std::unique_ptr<Backend> host, c10::Device device, int64_t at_most,
                   const SetOnce<Breakage>& interruption)
    : host_(std::move(host)),
      device_(device),
      at_most_(at_most),
      interruption_(interruption),
      down_(device::side_stream(device)),
      up_(device::side_stream(device)) {
  host_->set_elsewhere(&inside_);
}

Pipeline::~Pipeline() {
  // Whoever holds a transfer still must not hold what is the engine's.
  for (const Transfers* transfers : {&collectives_, &messages_, &failed_}) {
    for (const auto& transfer : *transfers) {
      for (Transfer::Part& part : transfer->parts_) part.request.reset();
    }
  }
}

void Pipeline::add(std::shared_ptr<Transfer> transfer) {
  waiting_ += static_cast<int64_t>(transfer->parts_.size());
  ++steps_;
  Transfers& beside = is_message(transfer->call_) ? messages_ : collectives_;
  beside.push_back(std::move(transfer));
}

bool Pipeline::turn() noexcept {
  try {
    const at::NoGradGuard no_grad;
    give_back();
    copy_down_all();
    hand_over_all();
    host_->progress();
    take_all();
  } catch (...) {
    fail_all(std::current_exception());  // the device says no
  }
  return !collectives_.empty() || !messages_.empty() || !leaving_.empty();
}

at::Tensor Pipeline::on_device(const Span& span) const {
  return bytes_at(span.device, span.bytes, device_);
}

void Pipeline::copy_down_all() {
  for (const auto& message : messages_) {
    for (Transfer::Part& part : message->parts_) {
      if (!part.down) copy_down(*message, part);
    }
  }
  for (const auto& collective : collectives_) {
    for (Transfer::Part& part : collective->parts_) {
      if (part.down) continue;
      if (staged_ > 0 && staged_ + part.piece.bytes > at_most_) return;
      copy_down(*collective, part);
      staged_ += part.piece.bytes;
    }
  }
}

void Pipeline::copy_down(Transfer& transfer, Transfer::Part& part) {
  part.memory = device::empty_pinned({part.piece.bytes}, at::kByte, device_);
  device::Event down(device_);
  const bool has_way = !part.piece.down.empty() || part.piece.call.op == Op::kBarrier;
  if (!has_way) {
    part.down = std::move(down);
    return;
  }
  const c10::StreamGuard on_down(down_);
  if (transfer.call_.after)
    static_cast<const device::Event*>(transfer.call_.after.get())->block(down_);
  for (const Span& span : part.piece.down)
    part.memory.narrow(0, span.host, span.bytes).copy_(on_device(span), /*non_blocking=*/true);
  down.record(down_);
  part.down = std::move(down);  // last: what threw on the way is not down
}

void Pipeline::hand_over_all() {
  // A transfer that fails leaves the list.
  bool sends = true;
  for (const auto& message : Transfers(messages_)) {
    const bool is_send = message->call_.op == Op::kSend;
    Transfer::Part& part = message->parts_.front();
    if (part.request || (is_send && !sends)) continue;
    if (!hand_over(message, part) && is_send) sends = false;  // none overtakes another
  }
  for (const auto& collective : Transfers(collectives_)) {
    for (Transfer::Part& part : collective->parts_) {
      if (part.request) continue;
      if (!hand_over(collective, part)) return;
      if (collective->settled()) break;  // it failed
    }
  }
}

// False: it is not down yet.
bool Pipeline::hand_over(const std::shared_ptr<Transfer>& transfer, Transfer::Part& part) {
  if (!part.down || !part.down->reached()) return false;
  Call& call = part.piece.call;
  auto* const memory = static_cast<std::byte*>(part.memory.mutable_data_ptr());
  if (part.piece.input >= 0) call.input = memory + part.piece.input;
  if (part.piece.output >= 0) call.output = memory + part.piece.output;
  try {
    part.request = host_->start(call);
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

// Whether it is settled.
bool Pipeline::take(const std::shared_ptr<Transfer>& transfer) {
  while (!transfer->settled()) {
    const std::unique_ptr<Request>& request = transfer->parts_.front().request;
    if (!request) return false;
    try {
      if (!request->poll()) return false;
    } catch (...) {
      fail(transfer, std::current_exception());
      return true;
    }
    copy_up(transfer);
  }
  return true;
}

// The first part, which the engine is done with.
void Pipeline::copy_up(const std::shared_ptr<Transfer>& transfer) {
  Transfer::Part part = std::move(transfer->parts_.front());
  transfer->parts_.pop_front();
  const bool message = is_message(transfer->call_);
  {
    const c10::StreamGuard on_up(up_);
    // What was copied down, and whoever used the memory before.
    part.down->block(up_);
    if (transfer->call_.after)
      static_cast<const device::Event*>(transfer->call_.after.get())->block(up_);
    for (const Span& span : part.piece.up)
      on_device(span).copy_(part.memory.narrow(0, span.host, span.bytes), /*non_blocking=*/true);
  }
  auto up = std::make_shared<device::Event>(device_);
  up->record(up_);
  leaving_.push_back({std::move(part.memory), up, message ? 0 : part.piece.bytes});
  ++steps_;
  if (!transfer->parts_.empty()) return;
  transfer->done_ = std::move(up);
  std::erase(message ? messages_ : collectives_, transfer);
  transfer->settled_.store(true, std::memory_order_release);
}

void Pipeline::fail(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) noexcept {
  for (const Transfer::Part& part : transfer->parts_) waiting_ -= part.request ? 0 : 1;
  ++steps_;
  failed_.push_back(transfer);
  std::erase(is_message(transfer->call_) ? messages_ : collectives_, transfer);
  transfer->error_ = transfer->in_pieces_ ? of_whole(error, transfer->text()) : std::move(error);
  transfer->settled_.store(true, std::memory_order_release);
}

void Pipeline::fail_all(const std::exception_ptr& error) noexcept {
  while (!messages_.empty()) fail(std::shared_ptr<Transfer>(messages_.front()), error);
  while (!collectives_.empty()) fail(std::shared_ptr<Transfer>(collectives_.front()), error);
}

void Pipeline::give_back() {
  while (!leaving_.empty() && leaving_.front().up->reached()) {
    staged_ -= leaving_.front().counted;
    leaving_.pop_front();
  }
}

// Whose end the engine is to wait for, so that this one goes on; null: the engine has nothing of it.
std::shared_ptr<Transfer> Pipeline::in_the_way(const Transfer& transfer) const {
  const Transfers& line = is_message(transfer.call_) ? messages_ : collectives_;
  for (const auto& one : line) {
    const bool self = one.get() == &transfer;
    // The engine runs collectives in order, messages as it likes.
    if ((self || &line == &collectives_) && one->parts_.front().request) return one;
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
        first->parts_.front().request->wait(deadline);
        const at::NoGradGuard no_grad;
        if (!first->settled()) copy_up(first);
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
    move_elsewhere(elsewhere_);
    std::this_thread::sleep_for(std::min<Deadline::Duration>(kLook, deadline.remaining()));
  }
}

void Pipeline::give_up(const std::exception_ptr& error) noexcept {
  fail_all(error);
  try {
    const c10::Stream current = device::current_stream(device_);
    device::order(down_, current);
    device::order(up_, current);
  } catch (const std::exception&) {  // the device is broken, and copies nothing
  }
}

bool Pipeline::close() noexcept {
  if (closed_) return *closed_;
  // The streams go on with copies that they were given.
  const Deadline soon = Deadline::after(kCopiesEnd);
  device::Event down(device_), up(device_);
  bool through = false;
  try {
    down.record(down_);
    up.record(up_);
    while (!(through = down.reached() && up.reached()) && !soon.expired())
      std::this_thread::sleep_for(kLook);
  } catch (const std::exception&) {  // the device is broken, and copies nothing
    through = true;
  }
  closed_ = host_->close() && through;
  return *closed_;
}

bool Pipeline::Inside::pending() const noexcept {
  return pipeline_.waiting_ > 0 ||
         (pipeline_.elsewhere_ != nullptr && pipeline_.elsewhere_->pending());
}

void Pipeline::Inside::move() noexcept {
  try {
    const at::NoGradGuard no_grad;
    // Their memory may be what others wait for. While a collective is waited for, none is before it.
    if (pipeline_.waits_for_message_) pipeline_.take_collectives();
    pipeline_.give_back();
    pipeline_.copy_down_all();
    pipeline_.hand_over_all();
  } catch (...) {  // the device says no
    pipeline_.fail_all(std::current_exception());
  }
  move_elsewhere(pipeline_.elsewhere_);
}

std::string Pipeline::Inside::stand(const Call& call, const std::vector<int>& awaited,
                                    bool moved) noexcept {
  return pipeline_.elsewhere_ == nullptr ? "" : pipeline_.elsewhere_->stand(call, awaited, moved);
}

}  // namespace lockstep::staged
