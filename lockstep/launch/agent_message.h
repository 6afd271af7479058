// What the agents of a job tell each other, over a connection that has passed the challenge. Pure.
//
// The first agent serves the store and leads; the others join it. A message is a frame's body
// (wire/frames.h), a JSON text.
//
// The ranks of all hosts that run together are a generation, and generations are numbered. Every
// word about one says its number: words about an older one are stale and change nothing. What is
// not answered is said again with the next beat, so that any message may be lost, come twice or
// late.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/node_plan.h"

namespace lockstep::launch {

// The agents of a generation, as far as whoever leads the next one has to know: with a standby for
// the first agent, each generation needs more than half of the one before.
struct Formation {
  int generation = -1;
  bool begun = false;  // else it was proposed, and may have begun elsewhere
  std::string by;      // the agent that led
  std::vector<std::string> agents;
};

// Those of `known` and `more` that count: the newest that has begun, and what was proposed since.
std::vector<Formation> newest_formations(std::vector<Formation> known,
                                         const std::vector<Formation>& more);

struct AgentMessage {
  enum class Kind {
    kJoin,     // member: agent, introduction, nodes, min_nodes, run_id, port, seen,
               // restarts, job
    kRefused,  // leader: text; the member cannot join
    kWait,     // leader: text; the member may be part of the next generation
    kPlan,     // leader: plan, of a new generation; its master has no host where that is the
               // leader's own
    kReady,    // member: it has the plan and takes no older one
    kStart,    // leader: all members have the plan; they start their ranks
    kFailed,  // member: failure, the first of its host, or else text, exit_code and stood_still; all must stop
    kSignal,  // either: number; a signal came, members pass it on to their ranks
    kStop,  // leader: text, number; members stop their ranks, for a failure elsewhere, or (SIGTERM) a new generation
    kServed,        // member: only services are left of its ranks
    kStopServices,  // leader: only they are left anywhere; members stop them
    kLeave,         // member: text; its ranks stop, and its host is not part of another generation
    kWaitInVain,  // either: ranks that are replaced where they die gave up waiting for one that may stand still elsewhere
    kStoodStill,  // either: such a rank stands still, and is replaced
    kEnded,  // member: all its ranks have ended; with failure if one was its first, sights, port and
             // whether they had finished, all ended with 0, and some output was lost
    kOver,   // leader: exit_code, text and failure if any; the job is over, no message follows
    kBeat,   // either: still there; a member's: it runs that generation
  };
  Kind kind = Kind::kBeat;
  int generation = -1;     // that the message is about; -1: none
  std::string agent = {};  // kJoin: made up by each agent process, to know it again
  NodeIntroduction introduction = {};
  int nodes = 0;  // kJoin: how many hosts with ranks the member was told of, at most
  int min_nodes = 0;
  std::string run_id = {};
  uint16_t port = 0;      // a free port on the member's host for the next generation's MASTER_PORT
  int seen = -1;          // kJoin: the newest generation whose plan the member had
  int restarts = 0;       // kJoin: of all ranks so far, as the member knows
  bool finished = false;  // kEnded: all ranks by themselves, with 0
  bool well = false;      // kEnded: all ranks with 0, whoever told them to
  bool stood_still = false;  // kFailed: the agent itself, so long that its ranks were ended
  bool lost_output = false;  // kEnded: their log files lack some of it, and that makes the job fail
  std::string job = {};      // kJoin: its name, as the member knows from a plan
  int endpoint = -1;         // kJoin: which of the job's endpoints is the member's host; -1: none
  NodePlan plan = {};
  // kJoin: of what generations the member knows; kPlan: those, and the plan's own. With a standby.
  std::vector<Formation> known = {};
  std::optional<WorkerFailure> failure = {};
  std::vector<RankSight> sights = {};  // kEnded: of the member's ranks
  int number = 0;
  int exit_code = 0;
  std::string text = {};
};

// The body of a frame.
std::string encode(const AgentMessage& message);

// Throws StoreError when it is not a message.
AgentMessage decode_agent_message(std::string_view body);

}  // namespace lockstep::launch
