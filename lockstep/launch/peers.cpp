#include "lockstep/launch/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/joined_agent.h"
#include "lockstep/launch/leading_agent.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

void Peers::tell(const AgentMessage& message) {
  AgentMessage said = message;
  if (message.kind == AgentMessage::Kind::kEnded) said.port = next_port();
  say(follower_.tell(std::move(said)));
}

void Peers::take(const AgentMessage& message) {
  const Follower::Step step = follower_.on_message(message);
  for (const AgentMessage& answer : step.say) say(answer);
  for (const AgentMessage& heard : step.hear) hear(heard);
}

void Peers::hear(const AgentMessage& message) {
  switch (message.kind) {
    case AgentMessage::Kind::kWait:
      waits_ = message.text;
      break;
    case AgentMessage::Kind::kStart: {
      NodePlan plan = message.plan;
      complete(plan);
      plan_ = plan;
      orders_.clear();
      break;
    }
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

AgentMessage introduction(const LaunchOptions& options, const Former& former) {
  AgentMessage join;
  join.kind = AgentMessage::Kind::kJoin;
  join.agent = former.agent;
  join.seen = former.seen;
  join.run_id = options.run_id;
  join.introduction = {
      .number = -1, .host = "", .address = "", .pid = ::getpid(), .ranks = options.nproc};
  join.nodes = join.min_nodes = 1;
  if (!options.nodes) return join;
  const NodesOptions& nodes = *options.nodes;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  join.introduction.host = name;
  join.introduction.number = nodes.number.value_or(-1);
  join.nodes = nodes.nodes;
  join.min_nodes = nodes.min_nodes > 0 ? nodes.min_nodes : nodes.nodes;
  return join;
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
// After the first agent was lost: so long may nobody listen where it did, on a host that answers.
constexpr auto kComesBack = std::chrono::seconds(3);
constexpr auto kProbe = std::chrono::milliseconds(300);

// Whether the host says that nobody listens there.
bool refuses(const HostPort& address) {
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
      ::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    size = sizeof *v4;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    if (::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) != 1) return false;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    size = sizeof *v6;
  }
  const UniqueFd fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return false;
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) == 0) return false;
  if (errno == ECONNREFUSED) return true;
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (errno != EINPROGRESS || ::poll(&waiting, 1, static_cast<int>(kProbe.count())) <= 0)
    return false;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == ECONNREFUSED;
}

// A signal that ends a launch which has not begun; 0: none came.
int stopping_signal(SignalPipe& signals) {
  for (const int signal : signals.take()) {
    if (signal != SIGUSR1 && signal != SIGUSR2) return signal;
  }
  return 0;
}

class Joining {
 public:
  Joining(const LaunchOptions& options, const Former& former, SignalPipe& signals, Console& out,
          Console& err)
      : options_(options),
        former_(former),
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
      if (!former_.lost.empty() && nobody_listens()) say_that_it_is_gone();
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
      return std::make_unique<LeadingAgent>(options_, former_, rendezvous.listen, endpoint.port,
                                            out_, err_);
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
        return std::make_unique<JoinedAgent>(options_, former_,
                                             HostPort{resolve(endpoint.host), endpoint.port},
                                             Deadline::after(kAttempt));
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
      if (member != nullptr && !peers->refusal().empty())
        throw LaunchError("this agent cannot join: " + peers->refusal());
      if (!peers->lost().empty()) return std::nullopt;
      if (peers->last_word()) {
        // The job ended without this host, which was there in case that it was needed.
        if (!peers->waits().empty()) return Joined{std::move(peers), 0};
        fail_to_meet(*peers);
      }
      say_why_it_waits(*peers);
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

  bool nobody_listens() {
    const bool refused = std::all_of(
        nodes_.endpoints.begin(), nodes_.endpoints.end(),
        [](const HostPort& endpoint) { return refuses({resolve(endpoint.host), endpoint.port}); });
    if (!refused) refused_since_.reset();
    if (refused && !refused_since_) refused_since_ = Clock::now();
    return refused && Clock::now() >= *refused_since_ + kComesBack;
  }

  [[noreturn]] void say_that_it_is_gone() const {
    throw LaunchError("the first agent of the job, at " + nodes_.endpoints.front().to_string() +
                      ", vanished: " + former_.lost +
                      "; nobody leads the job any more, start it again");
  }

  void say_why_it_waits(const Peers& peers) {
    if (peers.waits().empty() || told_why_ || options_.quiet) return;
    told_why_ = true;
    write_all(err_.fd(), "[lockstep] " + peers.waits() + "\n");
  }

  [[noreturn]] void give_up() {
    if (!former_.lost.empty())
      throw LaunchError("the first agent of the job, at " + nodes_.endpoints.front().to_string() +
                        ", vanished: " + former_.lost + "; it was not found again within " +
                        std::to_string(static_cast<int64_t>(deadline_.timeout_seconds())) + " s");
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
  const Former& former_;
  const NodesOptions& nodes_;
  SignalPipe& signals_;
  Console& out_;
  Console& err_;
  const Deadline deadline_;
  std::string why_ = "it did not answer";
  int refusals_ = 0;
  bool said_ = false;
  bool told_why_ = false;
  std::optional<Clock::time_point> refused_since_;
};

}  // namespace

Joined join_peers(const LaunchOptions& options, const Former& former, SignalPipe& signals,
                  Console& out, Console& err) {
  return Joining(options, former, signals, out, err).run();
}

}  // namespace lockstep::launch
