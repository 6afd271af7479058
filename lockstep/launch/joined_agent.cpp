#include "lockstep/launch/joined_agent.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/launch/leading_agent.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {
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

JoinedAgent::JoinedAgent(const LaunchOptions& options, const HostPort& endpoint, Deadline deadline)
    : options_(options),
      nodes_(*options.nodes),
      endpoint_(endpoint),
      master_port_(std::nullopt),
      leader_(connect_to_leader(endpoint, nodes_.secret, deadline)),
      heard_(Clock::now()),
      next_beat_(heard_ + nodes_.beat) {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  AgentMessage join;
  join.kind = Kind::kJoin;
  join.introduction = {nodes_.number.value_or(-1), name, leader_.local().host, ::getpid(),
                       options.nproc};
  join.nodes = nodes_.nodes;
  join.run_id = options.run_id;
  join.port = master_port_.port();
  leader_.send(join);
}

void JoinedAgent::tell(const AgentMessage& message) {
  if (!lost_) leader_.send(message);
}

void JoinedAgent::lose(const std::string& how) {
  lost_ = true;
  if (last_word()) return;
  if (!plan()) return;  // the one who joins tries again
  AgentMessage stop;
  stop.kind = Kind::kStop;
  hear(stop);
  AgentMessage over;
  over.kind = Kind::kOver;
  over.exit_code = 1;
  over.text = "[lockstep] the first agent of the job, at " + endpoint_.to_string() +
              ", vanished: " + how + "\n";
  hear(over);
}

void JoinedAgent::take_messages() {
  if (lost_) return;
  try {
    for (const AgentMessage& message : leader_.pump()) {
      heard_ = Clock::now();
      if (message.kind == Kind::kRefused) {
        refusal_ = message.text;
      } else if (message.kind == Kind::kPlan) {
        NodePlan plan = message.plan;
        // The address by which this host has reached the first agent.
        if (plan.master.host.empty()) plan.master.host = leader_.peer().host;
        // Rank 0's host may have reached it by loopback, from the same machine.
        if (is_loopback(plan.master.host) && !is_loopback(leader_.peer().host))
          plan.master.host = leader_.peer().host;
        plan.store = {leader_.peer().host, endpoint_.port};
        plan.interface = interface_of(interface_addresses(), leader_.local().host).value_or("");
        set_plan(plan);
      } else {
        hear(message);
      }
    }
  } catch (const Error& error) {
    lose(error.what());
  }
}

void JoinedAgent::watch(PollSet& polls) {
  const Time now = Clock::now();
  if (lost_ || last_word()) return;
  if (now >= heard_ + nodes_.silence) {
    take_messages();  // this process may have slept, not the other
    if (Clock::now() >= heard_ + nodes_.silence) {
      lose(
          "nothing was heard of it for " +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(nodes_.silence).count()) +
          " s");
      polls.wake_at(now);
      return;
    }
  }
  if (now >= next_beat_) {
    next_beat_ = now + nodes_.beat;
    leader_.send({});
  }
  polls.add(leader_.fd(), leader_.events(), [this] { take_messages(); });
  polls.add(nodes_.lifeline, POLLIN, [this] {
    char byte;
    const ssize_t n = ::read(nodes_.lifeline, &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) lose("its connection was closed");
  });
  polls.wake_at(next_beat_);
  polls.wake_at(heard_ + nodes_.silence);
}

bool JoinedAgent::left() {
  // This is the answer to the last word.
  lost_ = true;
  leader_.close();
  return true;
}

}  // namespace lockstep::launch
