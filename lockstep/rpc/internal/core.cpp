#include "lockstep/rpc/internal/core.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"
#include "lockstep/rpc/internal/directory.h"
#include "lockstep/rpc/internal/notice.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr auto kShownAfter = std::chrono::seconds(1);
// The time after the loss of a link after which nothing of a process counts that has not been
// heard.
constexpr auto kGoneAfter = std::chrono::seconds(2);

AgentOptions checked(AgentOptions options) {
  if (options.workers < 1 || options.workers > 1024)
    throw InvalidArgument("AgentOptions::workers is " + std::to_string(options.workers) +
                          "; use 1 to 1024");
  if (options.timeout <= std::chrono::nanoseconds::zero() ||
      options.lease <= std::chrono::nanoseconds::zero())
    throw InvalidArgument("AgentOptions::timeout and lease are positive times");
  if (options.calls_in_flight < 1 || options.queued_bytes < 1)
    throw InvalidArgument("AgentOptions::calls_in_flight and queued_bytes are 1 or more");
  for (const auto& [peer, map] : options.device_maps) {
    check_map(peer, map);
    check_own_devices(peer, map);
  }
  return options;
}

TransportOptions transport_options(const AgentOptions& options) {
  TransportOptions transport{.name = options.name, .listen = options.listen};
  transport.limits.queued_bytes = options.queued_bytes;
  return transport;
}

}  // namespace

Core::Core(Registry registry, std::shared_ptr<Store> store, const Secret& secret,
           AgentOptions options)
    : options_(checked(std::move(options))),
      registry_(std::move(registry)),
      store_(std::move(store)),
      reactor_(options_.workers, as_on_this_thread()),
      transport_(reactor_, store_, secret, transport_options(options_),
                 Deadline::after(options_.timeout)),
      calls_(options_, reactor_, transport_, sender_, board_),
      references_(calls_, registry_),
      contexts_(calls_, registry_),
      inbound_(registry_, calls_, sender_, contexts_, references_, board_) {}

void Core::start() {
  const auto self = shared_from_this();
  calls_.start(self, references_);
  references_.start(self);
  contexts_.start(self);
  inbound_.start(self);
  // Handlers hold the core weakly, so that a link does not outlive anything of it.
  const std::weak_ptr<Core> weak = self;
  transport_.start({.received =
                        [weak](const std::shared_ptr<Link>& link, Incoming& message) {
                          if (const auto core = weak.lock()) core->received(link, message);
                        },
                    .lost =
                        [weak](const std::shared_ptr<Link>& link, const std::string& why) {
                          if (const auto core = weak.lock()) core->lost(link, why);
                        }});
  if (board_.there()) show_pending();
}

// ---- received messages ----

void Core::received(const std::shared_ptr<Link>& link, Incoming& message) {
  try {
    switch (message.head.kind) {
      case MessageKind::kRequest:
        return inbound_.requested(link, message);
      case MessageKind::kResponse:
      case MessageKind::kError:
        return calls_.answered(link, message);
      case MessageKind::kCancel:
        return inbound_.cancelled(link, message.head.call);
      case MessageKind::kNotice: {
        Reader notice(message.body, std::move(message.tensors));
        return noticed(link, notice);
      }
      default:
        throw DataError("a message of rpc of an unknown kind");
    }
  } catch (const Error& error) {
    link->close(std::string("what it sent makes no sense: ") + error.what());
  }
}

void Core::noticed(const std::shared_ptr<Link>& link, Reader& notice) {
  switch (static_cast<Notice>(notice.byte())) {
    case Notice::kAlive:
      return references_.alive(link->peer());
    case Notice::kAcknowledged:
      return sender_.references().release(read_acknowledgement(*link, notice));
    case Notice::kReleased:
      return references_.released(notice);
    case Notice::kForget:
      return contexts_.forget(Codec<ContextId>::read(notice));
  }
  throw DataError("a notice of rpc of an unknown kind");
}

void Core::lost(const std::shared_ptr<Link>& link, const std::string& why) {
  calls_.lost(link, why);
  inbound_.lost(link);
  references_.doubt(link->peer());
  sender_.references().lost(*link);  // which may end objects of the user
  if (stopped()) return;
  reactor_.at(Deadline::Clock::now() + kGoneAfter,
              task_of([weak = weak_from_this(), process = link->peer().incarnation] {
                const auto core = weak.lock();
                if (!core) return;
                core->references_.expire();
                if (!core->transport_.has_link_with(process))
                  core->contexts_.forget_those_of(process);
              }));
}

// ---- pending calls ----

std::vector<ShownCall> Core::shown_calls() const {
  std::vector<ShownCall> all = calls_.list();
  for (ShownCall& one : inbound_.list()) all.push_back(std::move(one));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begun < b.begun; });
  return all;
}

std::vector<PendingCall> Core::pending_calls() const {
  std::vector<PendingCall> all;
  for (ShownCall& one : shown_calls()) all.push_back(std::move(one.call));
  return all;
}

void Core::show_pending() {
  if (stopped()) return;
  const auto now = Deadline::Clock::now();
  std::vector<ShownCall> old = shown_calls();
  std::erase_if(old, [&](const ShownCall& one) { return one.begun > now - kShownAfter; });
  board_.show(old);  // the oldest come first, since the board has limited room
  reactor_.at(now + kShownAfter, task_of([weak = weak_from_this()] {
                if (const auto core = weak.lock()) core->show_pending();
              }));
}

// ---- the end ----

void Core::meet_all(Deadline deadline) {
  if (!store_ || options_.world.size() < 2) return;
  const auto key = [](const std::string& name) { return "rpc-left/" + name; };
  store_->offer(key(options_.name), "1", deadline);
  std::vector<std::string> keys, late;
  for (const std::string& name : options_.world) keys.push_back(key(name));
  try {
    return store_->wait(keys, deadline);
  } catch (const Timeout&) {
    const Deadline soon = Deadline::seconds(kFarewell);
    for (const std::string& name : options_.world)
      if (!store_->peek(key(name), soon)) late.push_back("'" + name + "'");
  }
  if (late.empty()) return;
  throw Timeout("shutdown() of rpc: " + joined(late) + (late.size() == 1 ? " has" : " have") +
                " not come to it within " + std::to_string(deadline.timeout_seconds()) +
                " s: ended, or stuck in a call");
}

void Core::say_left() noexcept {
  if (!store_ || options_.world.size() < 2) return;
  try {
    store_->offer("rpc-ended/" + options_.name, "1", Deadline::seconds(kFarewell));
  } catch (const std::exception&) {  // no process waits for its server any more
  }
}

void Core::wait_left(Deadline deadline) noexcept {
  for (const std::string& name : options_.world) {
    if (name == options_.name) continue;
    try {
      store_->get("rpc-ended/" + name, deadline);
    } catch (const std::exception&) {
      return;
    }
  }
}

void Core::stop(const std::string& why, Deadline deadline) noexcept {
  if (!calls_.close()) {  // another thread stops it, or has done so
    MutexLock lock(mutex_);
    while (!ended_ && stopping_ != std::this_thread::get_id() && !reactor_.is_own_thread())
      if (!has_ended_.wait_until(lock, deadline.time())) break;
    return;
  }
  {
    // Callbacks of the end run on this thread, and may stop the agent, too.
    const MutexLock lock(mutex_);
    stopping_ = std::this_thread::get_id();
  }
  calls_.cancel_all(why);
  inbound_.cancel_all();
  references_.close();
  sender_.stop(deadline);
  try {
    transport_.close(why);
  } catch (const std::exception& error) {
    log_warning(std::string("rpc: ") + error.what());
  }
  references_.stop(deadline);
  reactor_.stop(deadline.time());
  const MutexLock lock(mutex_);
  ended_ = true;
  has_ended_.notify_all();
}

}  // namespace lockstep::inline v0::rpc::internal
