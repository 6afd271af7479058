// Peers: the agents of a job, as the agent of one host sees them.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/etcd.h"
#include "lockstep/launch/follower.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::launch {

// What the job's others want of the ranks here.
struct PeerOrder {
  int signal = 0;     // 0: stop, since something failed; else the signal came to another agent
  bool well = false;  // nothing failed: services stop, since only they are left
  bool asked =
      false;  // nothing failed: ranks stop for another generation, or another agent's SIGTERM
};

// Three kinds: AloneAgent, LeadingAgent and JoinedAgent. The first two have the Leader, and a
// Follower that talks to it as those of other hosts do. Not thread-safe; nothing here blocks.
// Messages come in while the PollSet of watch() is waited for.
class Peers {
 public:
  using Time = PollSet::Time;

  // `join`: how this agent introduces itself.
  explicit Peers(AgentMessage join) : follower_(std::move(join)) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  // Adds what is to be waited for; does first what is due now.
  virtual void watch(PollSet& polls) = 0;
  // What this agent has to tell: its first failure; a signal that came to it; that only services are
  // left of its ranks; that its host leaves; that all its ranks have ended, with that failure as it
  // is known in the end.
  void tell(const AgentMessage& message);
  // After the end of the job: true once nothing is left to be told or shown.
  virtual bool left() = 0;
  // Of the store that the ranks get.
  virtual const Secret& secret() const = 0;

  // This host's place in the newest generation that has begun.
  const std::optional<NodePlan>& plan() const { return plan_; }
  // This host may go while the others go on.
  virtual bool may_leave() const { return false; }
  // When the other agents go on without this one, unless they hear more of it; nullopt: there are none that can. Its ranks
  // shall not run any longer.
  virtual std::optional<Time> given_up_at() const { return std::nullopt; }
  // Then: whoever may do so is on this host, and sleeps when it does.
  virtual bool others_sleep_too() const { return false; }
  // The newest generation that this agent has had a plan of, begun or not; -1: none.
  int seen() const { return follower_.seen(); }
  // What it knows of generations, for whoever leads the next one.
  const std::vector<Formation>& known() const { return follower_.known(); }
  std::optional<PeerOrder> next_order();
  // Something was heard, or the first agent lost, since the last call: nobody should go to sleep.
  bool take_news() { return std::exchange(news_, false); }
  // Ranks of another host have just given up waiting for one that did not come.
  bool others_wait_in_vain() const { return std::chrono::steady_clock::now() < others_wait_until_; }
  // When another host last said that a rank there stands still and is replaced.
  std::optional<Time> stood_still_elsewhere() const { return stood_still_elsewhere_; }
  // How the job ended on all hosts; nullopt: it goes on.
  const std::optional<AgentMessage>& last_word() const { return last_word_; }
  // Why the first agent does not let this one join; "": it does, or has not answered.
  const std::string& refusal() const { return follower_.refusal(); }
  // Why this agent waits for a generation to come; "": it need not, or there is no answer yet.
  const std::string& waits() const { return waits_; }
  // How the first agent was lost, which may be found again; "": it was not.
  const std::string& lost() const { return lost_; }
  // Then: until when ranks of its host may still run.
  Time lost_ranks_until() const { return lost_ranks_until_; }

 protected:
  // Something that the first agent says to this one.
  void take(const AgentMessage& message);
  void hear(const AgentMessage& message);
  AgentMessage beat() const { return follower_.beat(); }
  // The ranks of this generation were, on all hosts: nothing had failed.
  bool asked_to_stop() const { return asked_to_stop_; }
  void set_port(uint16_t port) { follower_.set_port(port); }
  void set_address(const std::string& address) { follower_.set_address(address); }
  void set_lost(const std::string& how, Time ranks_until = {}) {
    lost_ = how;
    lost_ranks_until_ = ranks_until;
    news_ = true;
  }

 private:
  // To the first agent.
  virtual void say(const AgentMessage& message) = 0;
  // The plan of a generation that begins here: what only this agent knows is filled in.
  virtual void complete(NodePlan& plan) = 0;
  // A free port for the next generation's MASTER_PORT; 0: the one that was told before.
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

// What an agent that joins anew knows of before.
struct Former {
  std::string agent = {};     // its name of its own
  int seen = -1;              // the newest generation that it had a plan of
  NodePlan plan = {};         // of the newest that it was part of
  std::string lost = {};      // how the first agent was lost; "": this is the first time
  Peers::Time ranks_until{};  // so long, ranks of its host may run
  // Where a second agent may lead: what generations this one knows of, and its own endpoint's place.
  std::vector<Formation> known = {};
  int endpoint = -1;
};

// Agents at several endpoints may lead, one at a time.
inline bool has_standby(const NodesOptions& nodes) {
  return nodes.server == NodesOptions::Server::kWhoeverCan && nodes.endpoints.size() > 1;
}

// Whether the host says that nobody listens at its (numeric) address. Waits 0.3 s at most.
bool refuses(const HostPort& address);

// How an agent with `options` introduces itself.
AgentMessage introduction(const LaunchOptions& options, const Former& former);

// What joining came to.
struct Joined {
  std::unique_ptr<Peers> peers;  // with a plan, or with the last word where the job ended before
  int signal = 0;                // not 0: it came to this agent meanwhile, and nobody was joined
};

// An agent's name and where it listens, as one text, for who looks for it.
std::string encode_endpoints(const std::string& agent, const std::vector<HostPort>& endpoints);
// The addresses. Throws StoreError.
std::vector<HostPort> decode_endpoints(const std::string& text);

// `former`: what this agent knows; what it hears while it joins is added for whom it meets then.
// Finds the other agents, starts those that options.nodes->remotes names, and waits until a
// generation begins that this host is part of. Throws InvalidArgument, LaunchError (names who is
// missing), PeerLost instead where former.lost says that the job ran, StoreError, SystemError.
// `election`: where options.nodes->server is kElected; it outlives what is joined.
Joined join_peers(const LaunchOptions& options, const Former& former, EtcdElection* election,
                  SignalPipe& signals, Console& out, Console& err);

}  // namespace lockstep::launch
