#include "lockstep/rpc/internal/calls.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/context_state.h"
#include "lockstep/rpc/internal/notice.h"
#include "lockstep/rpc/internal/request_head.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr int64_t kCallsSentAtOnce = 16;  // with more calls in flight, calls are sent together

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

PeerLost owner_is_gone(const Peer& owner, bool another) {
  return PeerLost("the owner of a reference, " + owner.str() + ", is gone, and its object with it" +
                      (another ? "; who has its name now does not own it" : ""),
                  -1);
}

std::string words(const Pending& call) {
  return "'" + call.function.str() + "' on '" + call.peer.str() + "'";
}

std::exception_ptr error_of(const Pending& call, Reader& error) {
  const std::string type(error.text()), text(error.text()), place(error.text());
  std::string what = words(call);
  if (type == "types")
    what += ", registered at " + place + ", is " + text + ", but was called as " +
            (call.types ? *call.types : "?");
  else if (type == "unknown function")
    what += " " + text;
  else
    what += " threw " + type + ": " + text + " (registered at " + place + ")";
  return std::make_exception_ptr(RemoteError(what, call.peer.str(), call.function.str(), type));
}

void send_cancel(const Pending& call) {
  call.link->send({MessageKind::kCancel, call.number}, {}, {}, {}, Link::When::kNow);
}

// A thread's writer must keep neither tensors nor references.
class Cleared {
 public:
  explicit Cleared(Writer& writer) : writer_(writer) {}
  ~Cleared() { writer_.clear(nullptr); }
  Cleared(const Cleared&) = delete;
  Cleared& operator=(const Cleared&) = delete;

 private:
  Writer& writer_;
};

}  // namespace

Calls::Calls(const AgentOptions& options, Reactor& reactor, Transport& transport,
             MessageSender& sender, BoardPage& board)
    : options_(options), reactor_(reactor), transport_(transport), sender_(sender), board_(board) {}

void Calls::start(const std::shared_ptr<Core>& agent, ReferenceCodec& codec) {
  self_ = std::shared_ptr<Calls>(agent, this);
  codec_ = &codec;
}

// ---- whom they reach ----

std::shared_ptr<Link> Calls::link_of(const std::string& to, Deadline deadline, const Peer* owner) {
  if (stopped()) throw Cancelled("this agent, '" + options_.name + "', was shut down");
  if (auto link = transport_.living_link_to(to)) {
    if (owner && link->peer().incarnation != owner->incarnation) throw owner_is_gone(*owner, true);
    return link;
  }
  if (!owner) return transport_.link_to(to, deadline);
  try {
    auto link = transport_.link_to(to, deadline, owner->incarnation);
    if (link->peer().incarnation == owner->incarnation) return link;
  } catch (const PeerLost&) {
    throw owner_is_gone(*owner, false);
  }
  throw owner_is_gone(*owner, true);
}

void Calls::check_owner(const Peer& owner) const {
  if (stopped()) throw Cancelled("this agent, '" + options_.name + "', was shut down");
  const auto link = transport_.living_link_to(owner.name);
  bool gone = link && link->peer().incarnation != owner.incarnation;
  if (!link) {
    const MutexLock lock(mutex_);
    gone = gone_.contains(owner.incarnation);
  }
  if (gone) throw owner_is_gone(owner, link != nullptr);
}

bool Calls::tell(const Peer& peer, const Writer& notice) {
  const auto link = transport_.living_link_to(peer.name);
  if (!link || link->peer().incarnation != peer.incarnation) return false;
  send_notice(*link, notice);
  return true;
}

void Calls::tell(const std::string& name, const Writer& notice) {
  if (const auto link = transport_.living_link_to(name)) send_notice(*link, notice);
}

DeviceWay Calls::way_to(const std::string& peer) const {
  const auto found = options_.device_maps.find(peer);
  if (found != options_.device_maps.end()) return {.same = false, .map = found->second};
  return {.same = peer == options_.name, .map = {}};
}

// ---- the start of a call ----

void Calls::call(const std::string& to, const Request& request, Writer& arguments,
                 const PendingPtr& call, const Extra& extra) {
  const Cleared cleared(arguments);
  const CallContext& context = this_context();
  call->calls = self_;
  call->peer = to;
  call->function = request.function;
  call->types = request.types;
  const Deadline own = Deadline::after(request.options.timeout.value_or(options_.timeout));
  call->ends =
      context.deadline && context.deadline->remaining() < own.remaining() ? *context.deadline : own;
  // An object belongs to the receiver of its reference.
  if (!extra.keep) call->within = context.cancelled;
  DeviceWay way = extra.way ? *extra.way : way_to(to);
  Outgoing message;
  message.order = request.options.order;
  message.devices = devices_for(arguments.tensors(), way, [&](c10::Device device) {
    return words(*call) + ": a tensor on " + device.str() +
           " cannot be sent, since no device of '" + to +
           "' stands for it: AgentOptions::set_device_map(\"" + to + "\", {{" + device.str() +
           ", cuda:N}}), or send tensor.cpu()";
  });
  try {
    if (context.autograd)
      call->sent =
          context.autograd->context->sent(arguments.tensors(), to, context.autograd->next_call());
    if (extra.owner) check_owner(*extra.owner);
    message.link = call->link = link_of(to, *call->ends, extra.owner);
    if (extra.waits_for_room && !has_room(*call->link, !message.devices.empty())) {
      // While it waits, this thread may serve calls, which write with the same writer.
      Writer written = std::exchange(arguments, Writer());
      wait_for_room(*call, !message.devices.empty());
      arguments = std::move(written);
    }
  } catch (const Error&) {
    return call->state().fail(std::current_exception());
  }
  RequestHead head{.types_hash = request.types_hash,
                   .function = request.function,
                   .ends_in_ns = static_cast<uint64_t>(call->ends->remaining().count()),
                   .order = request.options.order,
                   .keep = extra.keep,
                   .record = {},
                   .way = std::move(way)};
  if (call->sent) head.record = call->sent->recording;
  thread_local Writer front;
  front.clear(nullptr);
  head.write(front);

  bool entered = false, sent = false;
  try {
    Copies copies;
    const bool later = sender_.must_wait(message);
    if (later) {
      copies = sender_.copy(message, front.body(), arguments);
      call->state().sent_with(copies.read);
    }
    call->begun = Deadline::Clock::now();
    // Before send() looks whether a thread reads; that thread looks for calls after it has stopped
    // (hand_back()). One of the two sees the other, in every order of memory.
    const int64_t in_flight = call->link->calls.fetch_add(1, std::memory_order_seq_cst);
    if (call->within) nested_.fetch_add(1, std::memory_order_relaxed);
    entered = true;
    if (table_.insert(call)) keep_time();
    message.call = call->number;
    const bool together = request.how == How::kAsync && in_flight >= kCallsSentAtOnce;
    if (later)
      sent = sender_.send_later(
          std::move(message), std::move(copies), front.body(), arguments, *call->ends,
          [weak = self_, call](const Outgoing& letter, const std::string& body,
                               const Tensors* tensors, const std::exception_ptr& error) {
            const auto self = weak.lock();
            if (self) self->send_copied(call, letter, body, tensors, error);
          });
    else
      sent = sender_.send(std::move(message), front.body(), arguments,
                          together                    ? Link::When::kSoon
                          : request.how == How::kSync ? Link::When::kMine
                                                      : Link::When::kNow);
  } catch (const InvalidArgument& error) {
    if (entered) end(call, nullptr);
    throw InvalidArgument(words(*call) + ": " + error.what());
  } catch (...) {
    if (entered) end(call, nullptr);
    throw;
  }
  if (!sent) end(call, not_sent(*call));
}

bool Calls::has_room(const Link& link, bool copies) const {
  return !copies && link.queued_bytes() < options_.queued_bytes &&
         link.calls.load(std::memory_order_relaxed) <
             static_cast<int64_t>(options_.calls_in_flight);
}

void Calls::wait_for_room(const Pending& call, bool copies) {
  Link& link = *call.link;
  const auto late = [&](const std::string& what) {
    return Timeout(words(call) + ": " + what + " within " +
                   seconds_text(call.ends->timeout_seconds()) +
                   " (AgentOptions::queued_bytes = " + std::to_string(options_.queued_bytes) + ")");
  };
  if (link.queued_bytes() >= options_.queued_bytes && !link.wait_for_room(*call.ends))
    throw late(std::to_string(link.queued_bytes()) +
               " bytes wait to be sent to it, and no room came");
  if (copies && !sender_.wait_for_room(link, options_.queued_bytes, *call.ends))
    throw late("tensors of devices wait for their copies, and no room came");
  const auto most = static_cast<int64_t>(options_.calls_in_flight);
  while (link.calls.load(std::memory_order_relaxed) >= most) {
    if (call.ends->expired())
      throw Timeout(words(call) + ": " + std::to_string(most) +
                    " calls to it are in flight, the most (AgentOptions::calls_in_flight), and "
                    "none returned within " +
                    seconds_text(call.ends->timeout_seconds()));
    const Deadline slice = Deadline::after(
        std::min<Deadline::Duration>(call.ends->remaining(), std::chrono::milliseconds(5)));
    if (!link.receive_until([&] { return link.calls.load(std::memory_order_relaxed) < most; },
                            slice))
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::exception_ptr Calls::not_sent(const Pending& call) const {
  if (stopped())
    return std::make_exception_ptr(
        Cancelled(words(call) + ": this agent, '" + options_.name + "', was shut down"));
  return std::make_exception_ptr(
      PeerLost(words(call) + ": " + call.link->peer().str() + " is gone", -1));
}

void Calls::send_copied(const PendingPtr& call, const Outgoing& message, const std::string& body,
                        const Tensors* copies, std::exception_ptr error) noexcept {
  if (error || !copies || call->state().done()) {  // the device's error, late, or cancelled
    sender_.drop(message);
    if (error) end(call, error);
    return;
  }
  try {
    if (!sender_.send_copies(message, body, *copies)) error = not_sent(*call);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) return end(call, error);
  // It was finished meanwhile: the other end does not know about it.
  if (call->state().done()) send_cancel(*call);
}

// ---- its end ----

void Calls::end(const PendingPtr& call, const std::exception_ptr& error) noexcept {
  if (const PendingPtr taken = table_.take(call->number)) finish(taken, error);
}

void Calls::finish(const PendingPtr& call, std::exception_ptr error) noexcept {
  board_.over(call->board);
  if (call->link) call->link->calls.fetch_sub(1, std::memory_order_relaxed);
  if (call->within) nested_.fetch_sub(1, std::memory_order_relaxed);
  if (error) call->state().fail(std::move(error));
}

void Calls::cancel(Pending& call) {
  const PendingPtr taken = table_.take(call.number);
  if (!taken)
    return call.state().fail(std::make_exception_ptr(Cancelled(words(call) + " was cancelled")));
  finish(taken, std::make_exception_ptr(Cancelled(words(call) + " was cancelled after " +
                                                  seconds_text(call.ends->elapsed_seconds()))));
  send_cancel(*taken);
}

void Calls::cancel_within(const std::vector<const std::atomic<bool>*>& calls) {
  if (calls.empty() || nested_.load(std::memory_order_relaxed) == 0) return;
  for (const PendingPtr& call : table_.list())
    if (call->within && std::find(calls.begin(), calls.end(), call->within.get()) != calls.end())
      cancel(*call);
}

void Calls::keep_time() {
  // Locked before looking, so that the last thread to look also sets the clock last.
  const MutexLock lock(mutex_);
  const auto next = table_.next_end();
  if (!next) return;
  if (clock_timer_) reactor_.cancel(clock_timer_);
  clock_timer_ = reactor_.at(*next, task_of([weak = self_] {
    const auto self = weak.lock();
    if (!self) return;
    for (const PendingPtr& late : self->table_.take_late(Deadline::Clock::now())) {
      self->finish(late,
                   std::make_exception_ptr(Timeout(words(*late) + " (" + late->link->peer().str() +
                                                   ") has not returned within " +
                                                   seconds_text(late->ends->timeout_seconds()))));
      send_cancel(*late);
    }
    self->keep_time();
  }));
}

void Calls::answered(const std::shared_ptr<Link>& link, Incoming& message) {
  std::shared_ptr<Receipt> receipt = receipt_of(self_, link, message);
  PendingPtr call = table_.take(message.head.call, link.get());
  if (!call) return link->drop(message.pending);  // it was cancelled, or was late
  if (message.head.kind == MessageKind::kError) {
    Reader reader(message.body, {});
    return finish(call, error_of(*call, reader));
  }
  size_t bytes = 0;  // bytes copied to pinned memory
  if (!message.devices.empty())
    for (const at::Tensor& tensor : message.tensors)
      if (tensor.defined()) bytes += tensor.nbytes();
  if ((!message.pending && bytes < static_cast<size_t>(kReachFrom)) || !reactor_.is_own_thread())
    return take_answer(call, message, std::move(receipt));
  // A worker reads large tensors and copies those of devices. Where the agent stops before a worker
  // has done so, the call ends without them.
  struct Kept {
    Kept(std::shared_ptr<Calls> of, PendingPtr given_call, const Incoming& given,
         std::shared_ptr<Receipt> its_receipt)
        : calls(std::move(of)),
          call(std::move(given_call)),
          message(given),
          body(given.body),
          receipt(std::move(its_receipt)) {
      message.body = body;
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
      if (!call) return;
      call->link->drop(message.pending);
      calls->finish(call, std::make_exception_ptr(
                              Cancelled(words(*call) + ": this agent was stopped meanwhile")));
    }
    const std::shared_ptr<Calls> calls;
    PendingPtr call;
    Incoming message;
    const std::string body;
    std::shared_ptr<Receipt> receipt;
  };
  auto kept = std::make_shared<Kept>(self_.lock(), std::move(call), message, std::move(receipt));
  message.pending = 0;
  reactor_.post(task_of([kept] {
    const PendingPtr its_call = std::exchange(kept->call, nullptr);
    kept->calls->take_answer(its_call, kept->message, std::move(kept->receipt));
  }));
}

void Calls::take_answer(const PendingPtr& call, Incoming& message,
                        std::shared_ptr<Receipt> receipt) {
  if (!call->state().claim()) {
    call->link->drop(message.pending);
    return finish(call, nullptr);
  }
  std::exception_ptr error;
  try {
    if (message.pending) call->link->fetch(message);
    Tensors came;  // tensors that are moving on to devices, for which this thread does not wait
    if (!message.devices.empty()) {
      came = message.tensors;
      call->state().arrives_with(arrive(message.tensors, message.devices));
    }
    Reader reader(message.body, {}, codec_, std::move(came), std::move(receipt));
    std::vector<uint32_t> places(reader.count());
    for (uint32_t& place : places) place = static_cast<uint32_t>(reader.length());
    if (call->sent) ContextState::attach(call->sent, message.tensors, places);
    reader.tensors() = std::move(message.tensors);
    call->take(reader);
  } catch (...) {
    error = std::current_exception();
  }
  finish(call, nullptr);
  call->state().finish(std::move(error));
}

void Calls::lost(const std::shared_ptr<Link>& link, const std::string& why) {
  for (const PendingPtr& call : table_.take_of(*link))
    finish(call, std::make_exception_ptr(
                     PeerLost(words(*call) + ": " + link->peer().str() + " is lost: " + why, -1)));
  const MutexLock lock(mutex_);
  gone_.insert(link->peer().incarnation);
}

void Calls::cancel_all(const std::string& why) noexcept {
  for (const PendingPtr& call : table_.take_all())
    finish(call, std::make_exception_ptr(Cancelled(words(*call) + ": " + why)));
}

std::vector<ShownCall> Calls::list() const {
  const auto now = Deadline::Clock::now();
  std::vector<ShownCall> all;
  for (const PendingPtr& call : table_.list())
    all.push_back({{false, call->peer.str(), call->function.str(),
                    std::chrono::duration<double>(now - call->begun).count()},
                   call->begun,
                   {call, &call->board}});
  return all;
}

// ---- called by the headers' templates ----

bool receive_for(Pending& call, Deadline deadline) {
  if (!call.link || deadline.expired()) return false;
  const auto calls = call.calls.lock();  // also keeps the reactor, which the link works with
  if (!calls) return false;
  return call.link->receive_until([&] { return call.state().done(); }, deadline);
}

void cancel_call(Pending& call) {
  if (const auto calls = call.calls.lock()) return calls->cancel(call);
  call.state().fail(std::make_exception_ptr(Cancelled("a call was cancelled")));
}

void run_after(Pending& call, Task task) {
  const auto calls = call.calls.lock();
  if (calls && !calls->stopped())
    calls->reactor().post(std::move(task));
  else
    task->run();
}

}  // namespace lockstep::inline v0::rpc::internal
