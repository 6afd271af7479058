#include "lockstep/rpc/internal/core.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/ticks.h"
#include "lockstep/rpc/internal/inbound_call.h"

namespace lockstep::rpc::internal {
namespace {

constexpr int64_t kCallsSentAtOnce = 16;  // with more calls in flight, calls are sent together
constexpr auto kDoubt = std::chrono::seconds(1);

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

}  // namespace

Core::Core(Registry registry, std::shared_ptr<Store> store, const Secret& secret,
           AgentOptions options)
    : options_(std::move(options)),
      registry_(std::move(registry)),
      store_(std::move(store)),
      secret_(secret) {
  if (options_.workers < 1 || options_.workers > 1024)
    throw InvalidArgument("AgentOptions::workers is " + std::to_string(options_.workers) +
                          "; use 1 to 1024");
  if (options_.timeout <= std::chrono::nanoseconds::zero() ||
      options_.lease <= std::chrono::nanoseconds::zero())
    throw InvalidArgument("AgentOptions::timeout and lease are positive times");
  if (options_.calls_in_flight < 1 || options_.queued_bytes < 1)
    throw InvalidArgument("AgentOptions::calls_in_flight and queued_bytes are 1 or more");
  for (const auto& [peer, map] : options_.device_maps) {
    check_map(peer, map);
    check_own_devices(peer, map);
  }
  register_own_functions();
  reactor_ = std::make_unique<Reactor>(options_.workers, as_on_this_thread());
}

Core::~Core() = default;

void Core::start() {
  // Handlers hold the core weakly, so that a link does not outlive anything of it.
  const std::weak_ptr<Core> weak = weak_from_this();
  connector_ = std::make_unique<BackgroundConnector>([weak](const Peer& peer, Deadline deadline) {
    const auto core = weak.lock();
    if (!core) throw Cancelled("the agent of a reference was shut down");
    core->check_owner(peer);
    core->link_of(peer.name, deadline, &peer);
  });
  TransportOptions options{.name = options_.name, .listen = options_.listen};
  options.limits.queued_bytes = options_.queued_bytes;
  transport_ = std::make_unique<Transport>(*reactor_, store_, secret_, std::move(options),
                                           Deadline::after(options_.timeout));
  board_ = trace::CallBoard::inherit(process_env());
  if (board_)
    board_rank_ = static_cast<int>(env_int(process_env(), "LOCAL_RANK", 0, INT32_MAX).value_or(0));
  // Messages arrive from here on, on other threads, so everything that serves them must exist.
  transport_->start({.received =
                         [weak](const std::shared_ptr<Link>& link, Incoming& message) {
                           if (const auto core = weak.lock()) core->received(link, message);
                         },
                     .lost =
                         [weak](const std::shared_ptr<Link>& link, const std::string& why) {
                           if (const auto core = weak.lock()) core->lost(link, why);
                         }});
  keep_leases();
  if (board_) show_pending();
}

std::shared_ptr<Link> Core::link_of(const std::string& to, Deadline deadline, const Peer* owner) {
  if (stopped()) throw Cancelled("this agent, '" + options_.name + "', was shut down");
  if (auto link = transport_->living_link_to(to)) {
    if (owner && link->peer().incarnation != owner->incarnation) throw owner_is_gone(*owner, true);
    return link;
  }
  if (!owner) return transport_->link_to(to, deadline);
  try {
    auto link = transport_->link_to(to, deadline, owner->incarnation);
    if (link->peer().incarnation == owner->incarnation) return link;
  } catch (const PeerLost&) {
    throw owner_is_gone(*owner, false);
  }
  throw owner_is_gone(*owner, true);
}

// ---- calls of this process ----

void Core::call(const std::string& to, std::string_view function, uint64_t types_hash,
                const std::string* types, Writer& arguments, const CallOptions& options, How how,
                const PendingPtr& call, const CallOf& of) {
  const CallContext& context = this_context();
  call->core = weak_from_this();
  call->peer = to;
  call->function = function;
  call->types = types;
  const Deadline own = Deadline::after(options.timeout.value_or(options_.timeout));
  call->ends =
      context.deadline && context.deadline->remaining() < own.remaining() ? *context.deadline : own;
  // An object belongs to the receiver of its reference.
  if (!of.keep) call->within = context.cancelled;
  DeviceWay way = of.way ? *of.way : way_to(to);
  Devices devices;
  try {
    devices = devices_for(arguments.tensors(), way, [&](c10::Device device) {
      return words(*call) + ": a tensor on " + device.str() +
             " cannot be sent, since no device of '" + to +
             "' stands for it: AgentOptions::set_device_map(\"" + to + "\", {{" + device.str() +
             ", cuda:N}}), or send tensor.cpu()";
    });
  } catch (const InvalidArgument&) {
    drop_holds(arguments.holds());
    throw;
  }
  try {
    if (context.autograd)
      call->sent =
          context.autograd->context->sent(arguments.tensors(), to, context.autograd->next_call());
    if (of.owner) check_owner(*of.owner);
    call->link = link_of(to, *call->ends, of.owner);
    Link& link = *call->link;
    if (of.waits_for_room && link.queued_bytes() >= options_.queued_bytes &&
        !link.wait_for_room(*call->ends))
      throw Timeout(words(*call) + ": " + std::to_string(link.queued_bytes()) +
                    " bytes wait to be sent to it, and no room came within " +
                    seconds_text(call->ends->timeout_seconds()) +
                    " (AgentOptions::queued_bytes = " + std::to_string(options_.queued_bytes) +
                    ")");
    if (of.waits_for_room && !devices.empty() &&
        !sender_.wait_for_room(&link, options_.queued_bytes, *call->ends))
      throw Timeout(words(*call) + ": tensors of devices of " +
                    std::to_string(options_.queued_bytes) +
                    " bytes wait for their copies, and no room came within " +
                    seconds_text(call->ends->timeout_seconds()) + " (AgentOptions::queued_bytes)");
    const auto most = static_cast<int64_t>(options_.calls_in_flight);
    while (of.waits_for_room && link.calls.load(std::memory_order_relaxed) >= most) {
      if (call->ends->expired())
        throw Timeout(words(*call) + ": " + std::to_string(most) +
                      " calls to it are in flight, the most "
                      "(AgentOptions::calls_in_flight), and none returned within " +
                      seconds_text(call->ends->timeout_seconds()));
      const Deadline slice = Deadline::after(
          std::min<Deadline::Duration>(call->ends->remaining(), std::chrono::milliseconds(5)));
      if (!link.receive_until([&] { return link.calls.load(std::memory_order_relaxed) < most; },
                              slice))
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (const Error& error) {
    drop_holds(arguments.holds());
    return call->state().fail(std::current_exception());
  }
  RequestHead head{.types_hash = types_hash,
                   .function = function,
                   .ends_in_ns = static_cast<uint64_t>(call->ends->remaining().count()),
                   .order = options.order,
                   .keep = of.keep,
                   .record = {},
                   .way = std::move(way)};
  if (call->sent) head.record = call->sent->recording;
  Writer& front = scratch_head();
  front.clear(nullptr);
  head.write(front);

  const std::shared_ptr<Link> link = call->link;
  // A message that must follow copies in progress waits for them, too.
  const DeferredSender::Line line{link.get(), options.order};
  const bool copied = !devices.empty() || (options.order != 0 && sender_.has(line));
  Copies copies;
  if (copied) try {
      link->check(front.body().size() + arguments.body().size(), arguments.tensors());
      copies = sender_.copy(arguments.tensors());
      call->state().sent_with(copies.read);
    } catch (const InvalidArgument& error) {
      drop_holds(arguments.holds());
      throw InvalidArgument(words(*call) + ": " + error.what());
    } catch (...) {
      drop_holds(arguments.holds());
      throw;
    }
  call->begun = Deadline::Clock::now();
  const int64_t in_flight = link->calls.fetch_add(1, std::memory_order_relaxed);
  if (call->within) nested_.fetch_add(1, std::memory_order_relaxed);
  if (calls_.insert(call)) keep_time();
  held_by(arguments.holds(), link, {call->number, false});
  const bool together = how == How::kAsync && in_flight >= kCallsSentAtOnce;
  bool sent = false;
  const auto undo = [&] {
    if (const PendingPtr taken = calls_.take(call->number)) finish(taken, nullptr);
    drop_holds(arguments.holds());
  };
  try {
    if (copied)
      sent = sender_.post(std::move(copies), line, *call->ends,
                          [weak = weak_from_this(), call, text = front.body() + arguments.body(),
                           devices = std::move(devices), holds = arguments.holds()](
                              const Tensors* tensors, const std::exception_ptr& error) {
                            if (const auto core = weak.lock())
                              core->send_copied(call, text, tensors, error, devices, holds);
                          });
    else
      sent = link->send({MessageKind::kRequest, call->number}, front.body(), arguments.body(),
                        arguments.tensors(),
                        together            ? Link::When::kSoon
                        : how == How::kSync ? Link::When::kMine
                                            : Link::When::kNow);
  } catch (const InvalidArgument& error) {
    undo();
    throw InvalidArgument(words(*call) + ": " + error.what());
  } catch (...) {
    undo();
    throw;
  }
  arguments.tensors().clear();
  if (sent) return;
  drop_holds(arguments.holds());
  if (const PendingPtr taken = calls_.take(call->number)) finish(taken, not_sent(*taken));
}

std::exception_ptr Core::not_sent(const Pending& call) const {
  if (stopped())
    return std::make_exception_ptr(
        Cancelled(words(call) + ": this agent, '" + options_.name + "', was shut down"));
  return std::make_exception_ptr(
      PeerLost(words(call) + ": " + call.link->peer().str() + " is gone", -1));
}

void Core::send_copied(const PendingPtr& call, const std::string& text, const Tensors* copies,
                       std::exception_ptr error, const Devices& devices,
                       const std::vector<uint64_t>& holds) noexcept {
  if ((!copies && !error) || call->state().done()) return drop_holds(holds);  // late, or cancelled
  if (!error) try {
      if (!call->link->send({MessageKind::kRequest, call->number, &devices}, text, {}, *copies,
                            Link::When::kNow))
        error = not_sent(*call);
    } catch (...) {
      error = std::current_exception();
    }
  if (error) {
    drop_holds(holds);
    if (const PendingPtr taken = calls_.take(call->number)) finish(taken, error);
  } else if (call->state().done()) {  // finished meanwhile: the other end does not know about it
    call->link->send({MessageKind::kCancel, call->number}, {}, {}, {}, Link::When::kNow);
  }
}

DeviceWay Core::way_to(const std::string& peer) const {
  const auto found = options_.device_maps.find(peer);
  if (found != options_.device_maps.end()) return {.same = false, .map = found->second};
  return {.same = peer == options_.name, .map = {}};
}

void Core::finish(const PendingPtr& call, std::exception_ptr error) noexcept {
  if (board_) {
    const MutexLock lock(mutex_);
    if (call->shown) board_->end(board_rank_, call->board_call, ticks());
    call->shown = true;  // show_pending() may have listed it
  }
  if (call->link) call->link->calls.fetch_sub(1, std::memory_order_relaxed);
  if (call->within) nested_.fetch_sub(1, std::memory_order_relaxed);
  if (error) call->state().fail(std::move(error));
}

void Core::call_owner(const Peer& owner, std::string_view function, Writer& arguments,
                      const CallOptions& options, How how, const PendingPtr& call) {
  this->call(owner.name, function, 0, nullptr, arguments, options, how, call, {.owner = &owner});
}

void Core::check_owner(const Peer& owner) const {
  if (stopped()) throw Cancelled("this agent, '" + options_.name + "', was shut down");
  const auto link = transport_->living_link_to(owner.name);
  bool gone = link && link->peer().incarnation != owner.incarnation;
  if (!link) {
    const MutexLock lock(mutex_);
    gone = gone_.contains(owner.incarnation);
  }
  if (gone) throw owner_is_gone(owner, link != nullptr);
}

void Core::cancel(Pending& call) {
  const PendingPtr taken = calls_.take(call.number);
  if (!taken)
    return call.state().fail(std::make_exception_ptr(Cancelled(words(call) + " was cancelled")));
  finish(taken, std::make_exception_ptr(Cancelled(words(call) + " was cancelled after " +
                                                  seconds_text(call.ends->elapsed_seconds()))));
  taken->link->send({MessageKind::kCancel, taken->number}, {}, {}, {}, Link::When::kNow);
}

void Core::cancel_within(const std::vector<const std::atomic<bool>*>& calls) {
  if (calls.empty() || nested_.load(std::memory_order_relaxed) == 0) return;
  for (const PendingPtr& call : calls_.list())
    if (call->within && std::find(calls.begin(), calls.end(), call->within.get()) != calls.end())
      cancel(*call);
}

void Core::keep_time() {
  // Locked before looking, so that the last thread to look also sets the clock last.
  const MutexLock lock(mutex_);
  const auto next = calls_.next_end();
  if (!next) return;
  if (clock_timer_) reactor_->cancel(clock_timer_);
  clock_timer_ = reactor_->at(*next, task_of([weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core) return;
    for (const PendingPtr& late : core->calls_.take_late(Deadline::Clock::now())) {
      core->finish(late,
                   std::make_exception_ptr(Timeout(words(*late) + " (" + late->link->peer().str() +
                                                   ") has not returned within " +
                                                   seconds_text(late->ends->timeout_seconds()))));
      late->link->send({MessageKind::kCancel, late->number}, {}, {}, {}, Link::When::kNow);
    }
    core->keep_time();
  }));
}

// ---- received messages ----

void Core::received(const std::shared_ptr<Link>& link, Incoming& message) {
  try {
    switch (message.head.kind) {
      case MessageKind::kRequest:
        return received_request(link, message);
      case MessageKind::kResponse:
      case MessageKind::kError:
        return received_answer(link, message);
      case MessageKind::kCancel: {
        std::vector<const std::atomic<bool>*> ended;
        {
          const MutexLock lock(mutex_);
          for (InboundCall* one : serving_)
            if (one->number() == message.head.call && one->link() == link)
              ended.push_back(one->cancel());
        }
        return cancel_within(ended);
      }
      case MessageKind::kNotice: {
        Reader reader(message.body, std::move(message.tensors));
        return received_notice(link, reader);
      }
      default:
        throw DataError("a message of rpc of an unknown kind");
    }
  } catch (const Error& error) {
    link->close(std::string("what it sent makes no sense: ") + error.what());
  }
}

void Core::received_request(const std::shared_ptr<Link>& link, Incoming& message) {
  const std::string_view body = message.body;
  // Only the header is read here; its tensors stay with the message.
  Reader reader(body, message.tensors);
  RequestHead head = RequestHead::read(reader);
  const std::string_view arguments = reader.rest();
  const Function* function = registry_.find(head.function);
  const auto refuse = [&](const std::string& type, const std::string& text,
                          const std::string& place) {
    if (head.keep) {
      objects_.expect(*head.keep, link->peer().incarnation);
      objects_.made(
          *head.keep, nullptr,
          std::make_exception_ptr(InvalidArgument("'" + std::string(head.function) + "' " + text)));
    }
    drop_unread(link, message);
    Writer writer;
    writer.text(type);
    writer.text(text);
    writer.text(place);
    link->send({MessageKind::kError, message.head.call}, writer.body(), {}, {}, Link::When::kNow);
  };
  if (!function) return refuse("unknown function", "is not registered there", "");
  if (head.types_hash && head.types_hash != function->types_hash)
    return refuse(
        "types", function->types,
        std::string(function->site.file_name()) + ":" + std::to_string(function->site.line()));
  if (head.keep) objects_.expect(*head.keep, link->peer().incarnation);
  const uint64_t order = head.order;
  auto served = std::make_shared<InboundCall>(shared_from_this(), link, *function, std::move(head),
                                              message, arguments);
  bool now = true;
  {
    const MutexLock lock(mutex_);
    serving_.push_back(served.get());
    if (order) {
      Line& line = lines_[{link.get(), order}];
      now = !std::exchange(line.busy, true);
      if (!now) line.waiting.push_back(served);
    }
  }
  if (!now) return;
  if (function->options.quick && !served->pending())
    served->run();
  else
    reactor_->post_here(served->task());
}

void Core::served(const InboundCall& call) noexcept {
  std::shared_ptr<InboundCall> next;
  {
    const MutexLock lock(mutex_);
    const auto at = std::find(serving_.begin(), serving_.end(), &call);
    if (at != serving_.end()) {
      *at = serving_.back();
      serving_.pop_back();
    }
    if (call.shown) board_->end(board_rank_, call.board_call, ticks());
    if (call.order()) {
      const auto found = lines_.find({call.link().get(), call.order()});
      if (found != lines_.end()) {
        if (found->second.waiting.empty()) {
          lines_.erase(found);
        } else {
          next = std::move(found->second.waiting.front());
          found->second.waiting.pop_front();
        }
      }
    }
  }
  if (next) reactor_->post(next->task());
}

void Core::received_answer(const std::shared_ptr<Link>& link, Incoming& message) {
  PendingPtr call = calls_.take(message.head.call);
  if (!call || call->link != link) {  // it was cancelled, or was late
    return drop_unread(link, message);
  }
  if (message.head.kind == MessageKind::kError) {
    Reader reader(message.body, {});
    return finish(call, error_of(*call, reader));
  }
  const auto take = [core = shared_from_this()](const PendingPtr& call, Incoming& message) {
    std::exception_ptr error;
    if (!call->state().claim()) {
      core->drop_unread(call->link, message);
      return core->finish(call, nullptr);
    }
    try {
      if (message.pending) call->link->fetch(message);
      Tensors came;  // tensors that are moving on to devices, for which this thread does not wait
      if (!message.devices.empty()) {
        came = message.tensors;
        call->state().arrives_with(arrive(message.tensors, message.devices));
      }
      LinkReferences references(*core, call->link);
      Reader reader(message.body, {}, &references, std::move(came));
      std::vector<uint32_t> places(reader.count());
      for (uint32_t& place : places) place = static_cast<uint32_t>(reader.length());
      if (call->sent) ContextState::attach(call->sent, message.tensors, places);
      reader.tensors() = std::move(message.tensors);
      call->take(reader);
    } catch (...) {
      core->say_unread(call->link, {call->number, true});
      error = std::current_exception();
    }
    core->finish(call, nullptr);
    call->state().finish(std::move(error));
  };
  size_t bytes = 0;  // bytes copied to pinned memory
  if (!message.devices.empty())
    for (const at::Tensor& tensor : message.tensors)
      if (tensor.defined()) bytes += tensor.nbytes();
  if ((!message.pending && bytes < static_cast<size_t>(kReachFrom)) || !reactor_->is_own_thread())
    return take(call, message);
  // A worker reads large tensors and copies those of devices. Where the agent stops before a worker
  // has done so, the call ends without them.
  struct Kept {
    Kept(std::shared_ptr<Core> its_core, PendingPtr its_call, const Incoming& given)
        : core(std::move(its_core)), call(std::move(its_call)), message(given), body(given.body) {
      message.body = body;
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
      if (!call) return;
      core->drop_unread(call->link, message);
      core->finish(call, std::make_exception_ptr(
                             Cancelled(words(*call) + ": this agent was stopped meanwhile")));
    }
    const std::shared_ptr<Core> core;
    PendingPtr call;
    Incoming message;
    const std::string body;
  };
  auto kept = std::make_shared<Kept>(shared_from_this(), std::move(call), message);
  message.pending = 0;
  reactor_->post(
      task_of([take, kept] { take(std::exchange(kept->call, nullptr), kept->message); }));
}

std::exception_ptr Core::error_of(const Pending& call, Reader& error) const {
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

void Core::lost(const std::shared_ptr<Link>& link, const std::string& why) {
  for (const PendingPtr& call : calls_.take_of(*link))
    finish(call, std::make_exception_ptr(
                     PeerLost(words(*call) + ": " + link->peer().str() + " is lost: " + why, -1)));
  std::vector<ReferencePtr> freed;
  std::vector<std::shared_ptr<InboundCall>> dropped;
  std::vector<const std::atomic<bool>*> ended;
  {
    const MutexLock lock(mutex_);
    gone_.insert(link->peer().incarnation);
    for (InboundCall* one : serving_)
      if (one->link() == link) ended.push_back(one->cancel());
    for (auto at = lines_.begin(); at != lines_.end();) {
      const bool gone = at->first.first == link.get();
      if (gone) dropped.insert(dropped.end(), at->second.waiting.begin(), at->second.waiting.end());
      at = gone ? lines_.erase(at) : std::next(at);
    }
    for (auto at = holds_.begin(); at != holds_.end();) {
      const bool gone = at->second.link == link;
      if (gone) freed.push_back(std::move(at->second.reference));
      at = gone ? holds_.erase(at) : std::next(at);
    }
  }
  cancel_within(ended);
  // A link may be lost while its process is alive: only silence from now on ends its references.
  const auto now = Deadline::Clock::now();
  objects_.doubt(link->peer().incarnation, now - options_.lease + kDoubt);
  if (stopped()) return;
  reactor_->at(now + 2 * kDoubt,
               task_of([weak = weak_from_this(), process = link->peer().incarnation] {
                 const auto core = weak.lock();
                 if (!core) return;
                 core->expire();
                 if (core->transport_->has_link_with(process)) return;
                 for (const ContextId id : core->contexts_.ending_with(process)) core->forget(id);
               }));
}

}  // namespace lockstep::rpc::internal
