// Peers: the agents of a job, as the agent of one host sees them.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/etcd.h"
#include "lockstep/launch/follower.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::inline v0::launch {

// A request of the job's other agents to the ranks here.
struct PeerOrder {
  int signal = 0;     // 0: stop after a failure; otherwise the signal that another agent got
  bool well = false;  // nothing failed: services stop, since only they are left
  // Nothing failed: ranks stop for another generation, or for another agent's SIGTERM.
  bool asked = false;
  bool leave = false;  // another host takes this one's place: its ranks end at once
};

// There are three kinds: AloneAgent, LeadingAgent and JoinedAgent. The first two own the Leader,
// and a Follower that talks to it as those of other hosts do. Nothing blocks. Messages arrive while
// the PollSet of watch() waits.
// Thread-safety: one thread at a time.
class Peers {
 public:
  using Time = PollSet::Time;

  // `join` introduces this agent.
  explicit Peers(AgentMessage join) : follower_(std::move(join)) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  // Does what is due now, and adds the descriptors to wait for.
  virtual void watch(PollSet& polls) = 0;
  // Sends this agent's reports: its first failure; a signal to it; that only services are left of
  // its ranks; that its host leaves; that all its ranks have ended, with the failure as it is known
  // in the end.
  void tell(const AgentMessage& message);
  // Whether all ranks here have seen that all ranks of the job have done their last step: a host
  // that is lost afterwards is not missed.
  void set_past_end(bool past_end) { follower_.set_past_end(past_end); }
  // After the end of the job: true once everything has been sent and shown.
  virtual bool left() = 0;
  // The secret of the ranks' store.
  virtual const Secret& secret() const = 0;

  // This host's place in the newest generation that has begun.
  const std::optional<NodePlan>& plan() const { return plan_; }
  // Whether this host may leave while the others continue.
  virtual bool may_leave() const { return false; }
  // Whether another host may take this one's place, if the first agent knows one.
  virtual bool may_give_place() const { return false; }
  // When the other agents continue without this one, unless they hear from it; its ranks must not
  // run any longer. nullopt: no agents can.
  virtual std::optional<Time> given_up_at() const { return std::nullopt; }
  // In that case: whether the agents that may do so are on this host, and sleep when it does.
  virtual bool others_sleep_too() const { return false; }
  // Whether this agent is the first one, which leads.
  virtual bool leads() const { return false; }
  // The newest generation whose plan this agent had, or gave to another, begun or not; -1: none.
  virtual int seen() const { return follower_.seen(); }
  // The generations that it knows, for the leader of the next one.
  const std::vector<Formation>& known() const { return follower_.known(); }
  std::optional<PeerOrder> next_order();
  // Whether a message arrived or the first agent was lost since the last call; the caller should
  // then not sleep.
  bool take_news() { return std::exchange(news_, false); }
  // Whether ranks of another host have just given up waiting for a late one.
  bool others_wait_in_vain() const { return std::chrono::steady_clock::now() < others_wait_until_; }
  // When another host last reported that a stopped rank is replaced there.
  std::optional<Time> stood_still_elsewhere() const { return stood_still_elsewhere_; }
  // How the job ended on all hosts; nullopt: it continues.
  const std::optional<AgentMessage>& last_word() const { return last_word_; }
  // Why the first agent does not let this one join; "": it does, or has not answered.
  const std::string& refusal() const { return follower_.refusal(); }
  // Why this agent waits for a generation; "": it need not, or there is no answer yet.
  const std::string& waits() const { return waits_; }
  // How the first agent was lost, which may be found again; "": it was not.
  const std::string& lost() const { return lost_; }
  // In that case: the time until which ranks of its host may still run.
  Time lost_ranks_until() const { return lost_ranks_until_; }

 protected:
  // Handles a message of the first agent.
  void take(const AgentMessage& message);
  void hear(const AgentMessage& message);
  AgentMessage beat() const { return follower_.beat(); }
  // Whether the ranks of this generation were told to stop, on all hosts, without a failure.
  bool asked_to_stop() const { return asked_to_stop_; }
  void set_port(uint16_t port) { follower_.set_port(port); }
  void set_address(const std::string& address) { follower_.set_address(address); }
  void set_lost(const std::string& how, Time ranks_until = {}) {
    lost_ = how;
    lost_ranks_until_ = ranks_until;
    news_ = true;
  }

 private:
  // Sends a message to the first agent.
  virtual void say(const AgentMessage& message) = 0;
  // Completes the plan of a generation that begins here by what only this agent knows.
  virtual void complete(NodePlan& plan) = 0;
  // A free port for the next generation's MASTER_PORT; 0: the one that was sent before.
  virtual uint16_t next_port() { return 0; }

  Follower follower_;
  std::optional<NodePlan> plan_;
  std::deque<PeerOrder> orders_;
  std::optional<AgentMessage> last_word_;
  bool asked_to_stop_ = false;
  std::string waits_;
  std::string lost_;
  Time lost_ranks_until_{};
  Time others_wait_until_{};
  std::optional<Time> stood_still_elsewhere_;
  bool news_ = false;
};

// The former state of an agent that joins anew.
struct Former {
  std::string agent = {};     // its own name
  int seen = -1;              // the newest generation whose plan it had
  NodePlan plan = {};         // of the newest that it was part of
  std::string lost = {};      // how the first agent was lost; "": this is the first time
  int ran_with = 0;           // AgentMessage's
  Peers::Time ranks_until{};  // until when ranks of that agent's host may run
  // Where a second agent may lead: the generations that this one knows, and its own endpoint's
  // place.
  std::vector<Formation> known = {};
  int endpoint = -1;
};

// Whether agents at several endpoints may lead, one at a time.
inline bool has_standby(const NodesOptions& nodes) {
  return nodes.server == NodesOptions::Server::kWhoeverCan && nodes.endpoints.size() > 1;
}

// Whether the host refuses connections at its (numeric) address. Waits 0.3 s at most.
bool refuses(const HostPort& address);

// The introduction of an agent with `options`.
AgentMessage introduction(const LaunchOptions& options, const Former& former);

// The result of joining.
struct Joined {
  std::unique_ptr<Peers> peers;  // with a plan, or with the last message where the job ended before
  int signal = 0;  // not 0: it arrived at this agent meanwhile, and no agent was joined
};

// An agent's name and its endpoints as one text, for agents that look for it.
std::string encode_endpoints(const std::string& agent, const std::vector<HostPort>& endpoints);
// The addresses.
// Throws: StoreError.
std::vector<HostPort> decode_endpoints(const std::string& text);

// Finds the other agents, starts those that options.nodes->remotes names, and waits until a
// generation begins that this host is part of. `former`: what this agent knows; what it learns
// while it joins is added. `election`: where options.nodes->server is kElected; it outlives the
// result.
// Throws: InvalidArgument, LaunchError (names the missing agents), PeerLost instead where
// former.lost says that the job ran, StoreError, SystemError.
Joined join_peers(const LaunchOptions& options, const Former& former, EtcdElection* election,
                  SignalPipe& signals, Console& out, Console& err);

}  // namespace lockstep::inline v0::launch
