// Verdict: which ranks are the cause of a job's end, and which only its consequence. Pure.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

// Whether a rank ended by itself that had been told to stop (SIGTERM; `killing`: SIGKILL too)
// shortly before its end was seen. `handles_term`: it would not die of SIGTERM.
bool ended_by_itself(const ExitStatus& status, bool killing, bool handles_term);

// Adds to the failure of the rank that failed first what the agents saw of all ranks that they
// have: who is the cause where that rank only waited for others, in this order: ranks that stand
// still; else the one that was waited for, through those that wait as well, if it ended; else ranks
// that ended by themselves, badly; else the one that was waited for. Where it did not only wait, the ranks that stand still are told all the
// same.
void judge(WorkerFailure& failure, std::span<const RankSight> sights);

}  // namespace lockstep::launch
