// Calls that are part of a graph, and the graph's replays.
//
// The ranks' hosts compare a captured call like any other, when it is captured. A replay is then
// one call for all of them: the hosts compare it before their devices get the graph, and the watch
// sees it end, so that a rank that is late, gone or in another call is named as usual.
#include <string>
#include <utility>

#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/ticks.h"
#include "lockstep/device/stream.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {

struct Communicator::Impl::Replay {
  std::string note;
  Site site;
  std::shared_ptr<PendingOp> operation = nullptr;
  std::shared_ptr<void> mark = nullptr;
};

device::Capture* Communicator::Impl::capture_of(const OpArgs& args) const {
  if (order_ == nullptr || !device::anybody_captures()) return nullptr;
  device::Capture* const capture = device::capture_of(device::current_stream(device_));
  if (capture == nullptr) return nullptr;
  const bool meets_host = args.op == Op::kBarrier || args.op == Op::kSend || args.op == Op::kRecv;
  if (!order_->captures() || meets_host) {
    throw InvalidArgument(
        std::string(to_string(args.op)) + " of backend " + capabilities().backend +
        " cannot be part of a graph: " +
        (meets_host ? "the ranks' hosts meet in it; leave it out of the step"
                    : "its ranks' hosts see to it while it runs; backend nccl has calls that can"));
  }
  return capture;
}

void Communicator::Impl::check_host_call() const {
  if (!device::anybody_captures()) return;
  if (device::capture_of(device::current_stream(device_)) == nullptr) return;
  throw InvalidArgument(
      "a call of the ranks' hosts (a barrier, or of tensors on the CPU) cannot be part of a graph, "
      "whose replays would not do it again: leave it out of the step, or give it tensors on " +
      device_.str() +
      "; of DistributedDataParallel it is that for parameters that are not used, "
      "which static_graph leaves out");
}

void Communicator::Impl::check_host_alone() const {
  if (!device::captures_here()) return;
  throw InvalidArgument(
      "a call of backend " + capabilities().backend +
      ", which the ranks' hosts carry, cannot be part of a graph, whose replays would not do it "
      "again: leave it out of the step");
}

CallNote Communicator::Impl::note_of_captured(const CallNote& note, std::string& text) {
  // Put first, because long notes are cut at the end.
  text = "captured in a graph";
  if (*note.text != '\0') text = "captured, " + std::string(note.text);
  return {call_note("captured").key ^ (note.key << 1), text.c_str()};
}

bool Communicator::Impl::orders_capture(const PendingOp& operation) const {
  if (!operation.ordered || !device::anybody_captures()) return false;
  const device::Capture* const capture = device::capture_of(device::current_stream(device_));
  if (capture == nullptr) return false;
  if (operation.capture != capture->id())
    throw InvalidArgument(
        "a call that was started before a graph's capture is waited for in it, and replays would "
        "not wait: wait for it before the step");
  return true;
}

void Communicator::Impl::take_part(device::Capture& capture, Site site) {
  if (capture_ == capture.id()) return;
  capture_ = capture.id();
  if (order_->mark_replay() == nullptr) return;  // there are no ranks to meet
  auto replay = std::make_shared<Replay>(
      Replay{.note = "replay of graph " + std::to_string(++graphs_), .site = site});
  const std::weak_ptr<char> alive = alive_;
  const auto check = [this, alive](bool) {
    if (alive.expired())
      throw InvalidArgument("a communicator that the graph's calls are of is gone");
    throw_if_broken();
  };
  const auto cancel = [this, alive, replay] {
    if (!alive.expired()) cancel_replay(*replay);
  };
  capture.add({.before = check,
               .start = [this, replay] { start_replay(*replay); },
               .meet = [this, replay] { meet_replay(*replay); },
               .after = [this, replay] { end_replay(*replay); },
               .cancel = cancel});
}

void Communicator::Impl::start_replay(Replay& replay) {
  Call call;
  call.op = Op::kBarrier;
  call.note = call_note(replay.note);
  call.site = replay.site;
  call.after = replay.mark = order_->mark_replay();
  const Entry entry(*this);
  throw_if_broken();
  auto operation = std::make_shared<PendingOp>();
  operation->ordered = true;
  submit(operation, 0, call);
  replay.operation = std::move(operation);
}

void Communicator::Impl::meet_replay(Replay& replay) {
  const Entry entry(*this);
  throw_if_broken();
  const uint64_t begun = ticks();
  try {
    replay.operation->request->order(Deadline::after(options_.timeout));
  } catch (...) {
    std::rethrow_exception(set_broken());
  }
  waited_->add(ticks() - begun);
}

void Communicator::Impl::end_replay(Replay& replay) {
  const std::shared_ptr<PendingOp> operation = std::exchange(replay.operation, nullptr);
  const Entry entry(*this);
  throw_if_broken();
  try {
    order_->replayed(replay.mark);
    const Deadline deadline = Deadline::after(options_.timeout);
    // The device reaches it when all its earlier work is complete.
    if (auto tail = operation->request->order(deadline))
      trail(*operation, std::move(tail), deadline, options_.timeout);
  } catch (...) {
    std::rethrow_exception(set_broken());
  }
  complete(*operation);
}

// The other ranks replay, or will, and would wait for this rank's device.
void Communicator::Impl::cancel_replay(Replay& replay) noexcept {
  if (std::exchange(replay.operation, nullptr) == nullptr || broken_.get() != nullptr) return;
  try {
    const Entry entry(*this);
    set_broken();
  } catch (const std::exception&) {  // it is broken, or another thread's
  }
}

}  // namespace lockstep::inline v0
