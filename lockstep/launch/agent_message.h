// What the agents of a job tell each other, over a connection that has passed the challenge. Pure.
//
// The first agent serves the store and leads; the others join it. A message is a frame's body
// (wire/frames.h), a JSON text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/node_plan.h"

namespace lockstep::launch {

struct AgentMessage {
  enum class Kind {
    kJoin,     // member: introduction, nodes, run_id, port
    kRefused,  // leader: text; the member cannot join
    kPlan,     // leader: plan; its master has no host where that is the leader's own
    kFailed,   // member: failure, the first of its host, or else text and exit_code; stop the job
    kSignal,   // either: number; a signal came, members pass it on to their ranks
    kStop,     // leader: something failed elsewhere; members stop their ranks
    kServed,   // member: only services are left of its ranks
    kStopServices,  // leader: only they are left anywhere; members stop them
    kEnded,  // member: all its ranks have ended; with failure if one was its first, and sights
    kOver,   // leader: exit_code, text and failure if any; the job is over, no message follows
    kBeat,   // either: still there
  };
  Kind kind = Kind::kBeat;
  NodeIntroduction introduction = {};
  int nodes = 0;  // kJoin: how many hosts with ranks the member was told of
  std::string run_id = {};
  uint16_t port = 0;  // kJoin: a free port on the member's host for MASTER_PORT
  NodePlan plan = {};
  std::optional<WorkerFailure> failure = {};
  std::vector<RankSight> sights = {};  // of the member's ranks
  int number = 0;
  int exit_code = 0;
  std::string text = {};
};

// The body of a frame.
std::string encode(const AgentMessage& message);

// Throws StoreError when it is not a message.
AgentMessage decode_agent_message(std::string_view body);

}  // namespace lockstep::launch
