// Peers: the other agents of a job, as the agent of one host sees them.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::launch {

// What the job's others want of the ranks here.
struct PeerOrder {
  int signal = 0;     // 0: stop, since something failed; else the signal came to another agent
  bool well = false;  // nothing failed: services stop, since only they are left
};

// Two kinds: LeadingAgent and JoinedAgent. Not thread-safe; nothing here blocks. Messages come in
// while the PollSet of watch() is waited for.
class Peers {
 public:
  using Time = PollSet::Time;

  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  // Adds what is to be waited for; does first what is due now.
  virtual void watch(PollSet& polls) = 0;
  // What this agent has to tell: its first failure; a signal that came to it; that only services are
  // left of its ranks; that all its ranks have ended, with that failure as it is known in the end.
  virtual void tell(const AgentMessage& message) = 0;
  // After the end of the job: true once nothing is left to be told or shown.
  virtual bool left() = 0;

  // This host's place, once all hosts have joined.
  const std::optional<NodePlan>& plan() const { return plan_; }
  std::optional<PeerOrder> next_order();
  // How the job ended on all hosts; nullopt: it goes on.
  const std::optional<AgentMessage>& last_word() const { return last_word_; }

 protected:
  // Something that the first agent says to this one.
  void hear(const AgentMessage& message);
  void set_plan(const NodePlan& plan) { plan_ = plan; }

 private:
  std::optional<NodePlan> plan_;
  std::deque<PeerOrder> orders_;
  std::optional<AgentMessage> last_word_;
};

// What joining came to.
struct Joined {
  std::unique_ptr<Peers> peers;  // with a plan
  int signal = 0;                // not 0: it came to this agent meanwhile, and nobody was joined
};

// Finds the other agents, starts those that options.nodes->remotes names, and waits until all hosts
// have joined. Throws InvalidArgument, LaunchError (names who is missing), StoreError, SystemError.
Joined join_peers(const LaunchOptions& options, SignalPipe& signals, Console& out, Console& err);

}  // namespace lockstep::launch
