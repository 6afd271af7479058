// Follower: what an agent makes of the words of the one that leads, and what it says to it until it
// is answered. Pure.
//
// It joins, gets a plan, says that it has it, is told to start, says how its ranks ended, and gets
// the next plan, or hears that the job is over. Words about an older generation are stale, and
// words that come twice count once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_message.h"

namespace lockstep::launch {

class Follower {
 public:
  struct Step {
    std::vector<AgentMessage> say;  // to the leader
    // For the agent and its ranks, each word once: kWait, kStart (with its plan), kStop,
    // kStopServices, kSignal, kOver; and kWaitInVain and kStoodStill as often as they come.
    std::vector<AgentMessage> hear;
  };

  // `join` is how it introduces itself; join.seen: the newest generation that this agent knows of.
  explicit Follower(AgentMessage join);

  Step on_message(const AgentMessage& message);
  // What the agent has to say of its ranks: kFailed, kServed, kEnded, kSignal, kLeave. As it is to
  // be sent, with the generation.
  AgentMessage tell(AgentMessage message);
  // What is still to be answered, or just that the agent is there: to be said with every beat.
  AgentMessage beat() const;

  // What it knows of generations, for whoever leads the next one.
  const std::vector<Formation>& known() const { return join_.known; }
  // What the introduction has of it.
  void set_endpoint(int endpoint) { join_.endpoint = endpoint; }
  void set_port(uint16_t port) { join_.port = port; }
  void set_address(const std::string& address) { join_.introduction.address = address; }

  // Why it cannot join; "": it can, or there is no answer yet.
  const std::string& refusal() const { return refusal_; }
  // The newest generation that it has had a plan of; -1: none.
  int seen() const { return join_.seen; }

 private:
  enum class State { kJoining, kWaiting, kReady, kRunning, kEnded, kOver };

  AgentMessage join_;
  State state_ = State::kJoining;
  NodePlan plan_;
  bool stopped_ = false;  // it was told to stop its ranks
  std::optional<AgentMessage> unanswered_;
  std::string refusal_;
};

}  // namespace lockstep::launch
