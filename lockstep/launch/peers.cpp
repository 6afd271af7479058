#include "lockstep/launch/peers.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/joined_agent.h"
#include "lockstep/launch/leading_agent.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

void Peers::hear(const AgentMessage& message) {
  switch (message.kind) {
    case AgentMessage::Kind::kStop:
      orders_.push_back({});
      break;
    case AgentMessage::Kind::kStopServices:
      orders_.push_back({.well = true});
      break;
    case AgentMessage::Kind::kSignal:
      orders_.push_back({message.number});
      break;
    case AgentMessage::Kind::kOver:
      if (!last_word_) last_word_ = message;
      break;
    default:
      break;
  }
}

std::optional<PeerOrder> Peers::next_order() {
  if (orders_.empty()) return std::nullopt;
  const PeerOrder order = orders_.front();
  orders_.pop_front();
  return order;
}

namespace {

using Clock = std::chrono::steady_clock;

// Long enough for a connection that works, short enough to look for signals and to try the next
// address.
constexpr auto kAttempt = std::chrono::milliseconds(1500);
constexpr auto kPause = std::chrono::milliseconds(200);
constexpr double kNoteAfterSeconds = 5;
// An agent of the job before may just be leaving; more often, the secret is another one.
constexpr int kRefusalsAllowed = 5;

// A signal that ends a launch which has not begun; 0: none came.
int stopping_signal(SignalPipe& signals) {
  for (const int signal : signals.take()) {
    if (signal != SIGUSR1 && signal != SIGUSR2) return signal;
  }
  return 0;
}

class Joining {
 public:
  Joining(const LaunchOptions& options, SignalPipe& signals, Console& out, Console& err)
      : options_(options),
        nodes_(*options.nodes),
        signals_(signals),
        out_(out),
        err_(err),
        deadline_(Deadline::after(nodes_.join_timeout)) {}

  Joined run() {
    while (true) {
      if (std::unique_ptr<Peers> first = serve()) {
        if (auto joined = meet(std::move(first))) return std::move(*joined);
      }
      if (std::unique_ptr<Peers> other = connect()) {
        if (auto joined = meet(std::move(other))) return std::move(*joined);
      }
      if (const int signal = stopping_signal(signals_)) return {nullptr, signal};
      if (lifeline_ended()) return {nullptr, SIGTERM};
      if (deadline_.expired()) give_up();
      say_that_it_waits();
      pause();
    }
  }

 private:
  // nullptr: this agent is not the first.
  std::unique_ptr<Peers> serve() {
    using Server = NodesOptions::Server;
    if (nodes_.server == Server::kOther) return nullptr;
    const std::vector<InterfaceAddress> here = interface_addresses();
    HostPort endpoint{"0.0.0.0", 0};
    if (!nodes_.endpoints.empty()) {
      endpoint = nodes_.endpoints.front();
    } else if (const auto candidates = candidate_addresses(here);
               !candidates.empty() && candidates.front().find(':') != std::string::npos) {
      endpoint.host = "::";  // this host has IPv6 alone
    }
    const Rendezvous rendezvous = decide_rendezvous(nodes_, resolve(endpoint.host), here);
    if (!rendezvous.may_serve) return nullptr;
    try {
      return std::make_unique<LeadingAgent>(options_, rendezvous.listen, endpoint.port, out_, err_);
    } catch (const SystemError& error) {
      if (rendezvous.must_serve || error.errnum() != EADDRINUSE) throw;
      return nullptr;
    }
  }

  // nullptr: nobody could be reached.
  std::unique_ptr<JoinedAgent> connect() {
    std::exception_ptr refused;
    for (const HostPort& endpoint : nodes_.endpoints) {
      try {
        return std::make_unique<JoinedAgent>(
            options_, HostPort{resolve(endpoint.host), endpoint.port}, Deadline::after(kAttempt));
      } catch (const StoreError&) {
        refused = std::current_exception();
      } catch (const Timeout& error) {
        why_ = error.what();
      } catch (const SystemError& error) {
        why_ = error.what();
      }
    }
    if (refused && ++refusals_ > kRefusalsAllowed) std::rethrow_exception(refused);
    return nullptr;
  }

  // nullopt: the first agent went away, try again.
  std::optional<Joined> meet(std::unique_ptr<Peers> peers) {
    const auto* member = dynamic_cast<const JoinedAgent*>(peers.get());
    bool told = false;
    while (!peers->plan()) {
      PollSet polls;
      polls.add(signals_.fd(), POLLIN);
      peers->watch(polls);
      flush(polls);
      if (member != nullptr && !member->refusal().empty())
        throw LaunchError("this agent cannot join: " + member->refusal());
      if (member != nullptr && member->lost()) return std::nullopt;
      if (peers->last_word()) fail_to_meet(*peers);
      polls.wait();
      const int signal = stopping_signal(signals_);
      if (signal == 0 || told) continue;
      told = true;
      AgentMessage message;
      message.kind = AgentMessage::Kind::kSignal;
      message.number = signal;
      peers->tell(message);
      if (member == nullptr) leave(*peers);
      return Joined{nullptr, signal};
    }
    return Joined{std::move(peers), 0};
  }

  void flush(PollSet& polls) {
    for (Console* console : {&out_, &err_}) {
      console->flush();
      console->watch(polls);
    }
  }

  // Lets the others know.
  void leave(Peers& peers) {
    const Deadline deadline = Deadline::seconds(5);
    while (!peers.left() && !deadline.expired()) {
      PollSet polls;
      peers.watch(polls);
      flush(polls);
      polls.wake_at(deadline.time());
      polls.wait();
    }
    out_.flush();
    err_.flush();
  }

  [[noreturn]] void fail_to_meet(Peers& peers) {
    std::string text = peers.last_word()->text;
    leave(peers);
    const std::string head = "[lockstep] ";
    if (text.starts_with(head)) text.erase(0, head.size());
    while (!text.empty() && text.back() == '\n') text.pop_back();
    throw LaunchError(text);
  }

  bool lifeline_ended() const {
    pollfd waiting{nodes_.lifeline, POLLIN, 0};
    char byte;
    return nodes_.lifeline >= 0 && ::poll(&waiting, 1, 0) > 0 &&
           ::read(nodes_.lifeline, &byte, 1) == 0;
  }

  [[noreturn]] void give_up() {
    throw LaunchError("no first agent to join within " +
                      std::to_string(static_cast<int64_t>(deadline_.timeout_seconds())) +
                      " s: " + why_);
  }

  void say_that_it_waits() {
    if (said_ || options_.quiet || deadline_.elapsed_seconds() < kNoteAfterSeconds) return;
    said_ = true;
    write_all(err_.fd(), "[lockstep] waiting for the first agent, at " +
                             nodes_.endpoints.front().to_string() + "\n");
  }

  void pause() {
    PollSet polls;
    polls.add(signals_.fd(), POLLIN);
    polls.add(nodes_.lifeline, POLLIN);
    polls.wake_at(Clock::now() + kPause);
    polls.wait();
  }

  const LaunchOptions& options_;
  const NodesOptions& nodes_;
  SignalPipe& signals_;
  Console& out_;
  Console& err_;
  const Deadline deadline_;
  std::string why_ = "it did not answer";
  int refusals_ = 0;
  bool said_ = false;
};

}  // namespace

Joined join_peers(const LaunchOptions& options, SignalPipe& signals, Console& out, Console& err) {
  return Joining(options, signals, out, err).run();
}

}  // namespace lockstep::launch
