#include "lockstep/launch/joined_agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/leading_agent.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = AgentMessage::Kind;

AgentChannel connect_to_leader(const HostPort& endpoint, const Secret& secret, Deadline deadline) {
  TcpStore store(endpoint, secret, deadline);
  const auto port = parse_int(store.get(kAgentPortKey, deadline), 1, 65535);
  if (!port) throw StoreError("the store at " + endpoint.to_string() + " is not an agent's");
  return AgentChannel::connect({endpoint.host, static_cast<uint16_t>(*port)}, secret, deadline);
}

}  // namespace

JoinedAgent::JoinedAgent(const LaunchOptions& options, const Former& former,
                         const HostPort& endpoint, Deadline deadline)
    : Peers(introduction(options, former)),
      options_(options),
      nodes_(*options.nodes),
      endpoint_(endpoint),
      leader_(connect_to_leader(endpoint, nodes_.secret, deadline)),
      heard_(Clock::now()),
      next_beat_(heard_ + nodes_.beat) {
  set_port(next_port());
  set_address(leader_.local().host);
  say(beat());
}

void JoinedAgent::say(const AgentMessage& message) {
  if (!closed_) leader_.send(message);
}

uint16_t JoinedAgent::next_port() {
  master_port_.emplace(std::nullopt);
  return master_port_->port();
}

// On the job's other hosts, a number of hosts below the maximum is enough.
bool JoinedAgent::may_leave() const {
  return on_failure_of(options_) == OnFailure::kRestart && nodes_.min_nodes > 0 &&
         nodes_.min_nodes < nodes_.nodes;
}

bool JoinedAgent::may_give_place() const {
  return nodes_.spare_nodes > 0 && !closed_ && !last_word();
}

// Where the leader is lost, the ranks here are being stopped.
std::optional<Peers::Time> JoinedAgent::given_up_at() const {
  return (closed_ || last_word() ? Clock::now() : next_beat_ - nodes_.beat) + nodes_.silence;
}

// Whether the only other agent that may lead sleeps, too.
bool JoinedAgent::others_sleep_too() const {
  const std::string& first = leader_.peer().host;
  return nodes_.server != NodesOptions::Server::kElected && !has_standby(nodes_) &&
         (is_loopback(first) || first == leader_.local().host);
}

void JoinedAgent::lose(const std::string& how, bool for_good, bool silent) {
  closed_ = true;
  if (last_word()) return;
  // The leader's ranks were asked to stop, too.
  const auto grace =
      asked_to_stop() ? std::max(options_.grace, options_.stop_grace) : options_.grace;
  if (plan()) {
    AgentMessage stop;
    stop.kind = Kind::kStop;
    if (nodes_.spare_nodes > 0) {
      // Other ranks may take their places at once.
      stop.kind = Kind::kSignal;
      stop.number = SIGKILL;
    }
    hear(stop);
  }
  // An agent that is joining tries again, and so does one whose host may have ranks again.
  const bool comes_back = on_failure_of(options_) == OnFailure::kRestart || nodes_.spare_nodes > 0;
  if (!for_good && (!plan() || comes_back)) {
    // An agent that was elected and leads no more closes its connections while its ranks end.
    // Ranks that were asked to stop have longer than hosts wait for each other.
    const bool may_run =
        silent || asked_to_stop() || nodes_.server == NodesOptions::Server::kElected;
    set_lost(how, may_run ? ranks_gone_by(Clock::now(), nodes_.beat, grace) : Time{});
    return;
  }
  AgentMessage over;
  over.kind = Kind::kOver;
  over.exit_code = 1;
  over.text = "[lockstep] the first agent of the job, at " + endpoint_.to_string() +
              ", vanished: " + how + "\n";
  hear(over);
}

// The fields of its plan that only this host knows.
void JoinedAgent::complete(NodePlan& plan) {
  // The address under which this host reached the first agent.
  if (plan.master.host.empty()) plan.master.host = leader_.peer().host;
  // Rank 0's host may have reached it by loopback, because it is on the same machine.
  if (is_loopback(plan.master.host) && !is_loopback(leader_.peer().host))
    plan.master.host = leader_.peer().host;
  plan.store.host = leader_.peer().host;
  plan.interface = interface_of(interface_addresses(), leader_.local().host).value_or("");
}

void JoinedAgent::take_messages() {
  if (closed_) return;
  try {
    for (const AgentMessage& message : leader_.pump()) {
      heard_ = Clock::now();
      take(message);
    }
  } catch (const Error& error) {
    lose(error.what());
  }
}

void JoinedAgent::watch(PollSet& polls) {
  const Time now = Clock::now();
  if (closed_ || last_word()) return;
  if (now >= heard_ + nodes_.silence) {
    take_messages();  // this process may have slept, rather than the other one
    if (Clock::now() >= heard_ + nodes_.silence) {
      lose("nothing was heard of it for " + seconds_text(nodes_.silence), false, /*silent=*/true);
      polls.wake_at(now);
      return;
    }
  }
  if (now >= next_beat_) {
    next_beat_ = now + nodes_.beat;
    say(beat());
  }
  polls.add(leader_.fd(), leader_.events(), [this] { take_messages(); });
  polls.add(nodes_.lifeline, POLLIN, [this] {
    char byte;
    const ssize_t n = ::read(nodes_.lifeline, &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
      lose("its connection was closed", true);
  });
  polls.wake_at(next_beat_);
  polls.wake_at(heard_ + nodes_.silence);
}

bool JoinedAgent::left() {
  // This answers the last message.
  closed_ = true;
  leader_.close();
  return true;
}

}  // namespace lockstep::inline v0::launch
