// LeadingAgent: the first agent of a job: serves the store, listens for the others, and does what
// the Leader decides.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/agent_channel.h"
#include "lockstep/launch/leader.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"
#include "lockstep/launch/remote_agents.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {

// The key of the job's store under which the first agent's port for the others is.
inline constexpr const char* kAgentPortKey = "lockstep/agents";

class LeadingAgent final : public Peers {
 public:
  // Listens on `listen`:`port` (0: a free one) for the store, and starts the remote agents. Throws
  // SystemError (EADDRINUSE when there is one already), LaunchError.
  LeadingAgent(const LaunchOptions& options, const std::string& listen, uint16_t port, Console& out,
               Console& err);

  void watch(PollSet& polls) override;
  void tell(const AgentMessage& message) override;
  bool left() override;

 private:
  struct Connection {
    AgentChannel channel;
    Time since;
    bool dead = false;
  };

  void dispatch(const Leader::Sends& sends);
  void accept_all();
  void serve(Leader::Member member);
  void drop_the_dead(Time now);
  void say_who_is_missing(Time now);
  NodePlan own_plan(NodePlan plan) const;
  // The address by which others reach this host, as far as they have.
  std::string reached_at() const;

  const LaunchOptions& options_;
  const NodesOptions& nodes_;
  Console& err_;
  PortReservation master_port_;
  TcpStoreServer store_;
  UniqueFd listener_;
  Leader leader_;
  std::map<Leader::Member, Connection> connections_;
  Leader::Member next_member_ = Leader::kSelf + 1;
  int refusals_ = 0;
  std::string reached_at_;
  std::optional<Time> note_at_;
  std::optional<Time> leave_by_;
  std::unique_ptr<RemoteAgents> remotes_;  // last: they need the store's address
};

}  // namespace lockstep::launch
