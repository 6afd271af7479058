// LeadingAgent: the first agent of a job: serves the store, listens for the others, and carries out
// the Leader's decisions.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_channel.h"
#include "lockstep/launch/leader.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"
#include "lockstep/launch/remote_agents.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::launch {

// The keys of the agents' store: the first agent's port for the others, and the newest generation
// that began under it.
inline constexpr const char* kAgentPortKey = "lockstep/agents";
inline constexpr const char* kGenerationKey = "lockstep/generation";

class LeadingAgent final : public Peers {
 public:
  // Listens on `listen`:`port` (0: a free one) for the store, and starts the remote agents. With an
  // election it is a candidate at first, and lost() once another agent leads.
  // Throws: SystemError (EADDRINUSE when there is one already), LaunchError.
  LeadingAgent(const LaunchOptions& options, const Former& former, EtcdElection* election,
               const std::string& listen, uint16_t port, Console& out, Console& err);

  void watch(PollSet& polls) override;
  bool left() override;
  std::optional<Time> given_up_at() const override;
  bool leads() const override { return introduced_; }
  int seen() const override { return std::max(Peers::seen(), leader_.generation()); }
  const Secret& secret() const override { return nodes_.secret; }

 private:
  struct Connection {
    AgentChannel channel;
    Time since;
    bool dead = false;
  };

  void say(const AgentMessage& message) override;
  void complete(NodePlan& plan) override;
  uint16_t next_port() override;
  void dispatch(const Leader::Sends& sends);
  void have_store_of(int generation);
  void hold_election(PollSet& polls);
  void step_down(const std::string& why);
  void look_at_other_endpoints(Time now);
  void put(const char* key, const std::string& value);
  void look_for_ends_of_remotes(Time now);
  void accept_all();
  void say_refused(const std::string& line);
  void serve(Leader::Member member);
  void drop_the_dead(Time now);
  void say_who_is_missing(Time now);
  // The address by which others have reached this host; "" if none has.
  std::string reached_at() const;

  const LaunchOptions& options_;
  const NodesOptions& nodes_;
  EtcdElection* const election_;  // nullptr: there is none
  Console& err_;
  std::optional<PortReservation> master_port_;
  TcpStoreServer store_;  // for the agents to find each other
  // Every generation of ranks has its own.
  std::unique_ptr<TcpStoreServer> ranks_store_;
  int ranks_store_of_ = -1;  // its generation
  std::optional<wire::Listener> listener_;
  Leader leader_;
  bool introduced_ = false;
  const int endpoint_;  // among several, where it may lead; -1: there is one
  const int begun_;     // the newest generation that this agent was part of before; -1: none
  Time look_at_;
  std::map<Leader::Member, Connection> connections_;
  Leader::Member next_member_ = Leader::kSelf + 1;
  int refusals_ = 0;
  std::string reached_at_;   // by others, as far as is known
  std::string own_address_;  // by this process
  std::optional<Time> note_at_;
  bool was_meeting_ = true;
  std::vector<RemoteAgents::End> remote_ends_;
  std::optional<Time> leave_by_;
  std::unique_ptr<RemoteAgents> remotes_;  // last: they need the store's address
};

}  // namespace lockstep::inline v0::launch
