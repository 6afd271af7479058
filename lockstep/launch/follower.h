// Follower: an agent's reaction to the leader's messages, and the messages that it sends until they
// are answered. Pure.
//
// It joins, gets a plan, confirms it, is told to start, reports how its ranks ended, and gets the
// next plan, or learns that the job is over. Messages about an older generation are stale, and
// duplicates count once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_message.h"

namespace lockstep::inline v0::launch {

class Follower {
 public:
  struct Step {
    std::vector<AgentMessage> say;  // to the leader
    // For the agent and its ranks, each once: kWait, kStart (with its plan), kStop, kStopServices,
    // kSignal, kOver; and kLeave, kWaitInVain and kStoodStill as often as they arrive.
    std::vector<AgentMessage> hear;
  };

  // `join` introduces this agent; join.seen: the newest generation that it knows.
  explicit Follower(AgentMessage join);

  Step on_message(const AgentMessage& message);
  // The agent's reports about its ranks: kFailed, kServed, kEnded, kSignal, kLeave. Returns the
  // message to send, with the generation.
  AgentMessage tell(AgentMessage message);
  // The message to repeat with every beat: an unanswered one, or a sign of life.
  AgentMessage beat() const;

  // The generations that it knows, for the leader of the next one.
  const std::vector<Formation>& known() const { return join_.known; }
  // Sets the introduction's endpoint.
  void set_endpoint(int endpoint) { join_.endpoint = endpoint; }
  // Whether all ranks here have seen that all ranks of the job have done their last step.
  void set_past_end(bool past_end) { past_end_ = past_end; }
  void set_port(uint16_t port) { join_.port = port; }
  void set_address(const std::string& address) { join_.introduction.address = address; }

  // Why it cannot join; "": it can, or there is no answer yet.
  const std::string& refusal() const { return refusal_; }
  // The newest generation whose plan it had; -1: none.
  int seen() const { return join_.seen; }

 private:
  enum class State { kJoining, kWaiting, kReady, kRunning, kEnded, kOver };

  AgentMessage join_;
  State state_ = State::kJoining;
  NodePlan plan_;
  bool heard_wait_ = false;
  bool past_end_ = false;
  bool stopped_ = false;  // it was told to stop its ranks
  std::optional<AgentMessage> unanswered_;
  std::string refusal_;
};

}  // namespace lockstep::inline v0::launch
