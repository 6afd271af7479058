// Verdict: decides which ranks caused a job's end, and which only suffered from it. Pure.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/launch/worker_failure.h"

namespace lockstep::inline v0::launch {

// Whether a rank ended by itself that had been told to stop (SIGTERM; `killing`: SIGKILL too)
// shortly before its end was seen. `handles_term`: it would not die of SIGTERM.
bool ended_by_itself(const ExitStatus& status, bool killing, bool handles_term);

// Adds to the failure of the rank that failed first what the agents observed of all their ranks.
// Where that rank only waited for others, it finds the cause in this order: stopped ranks; the
// awaited rank, through ranks that wait as well, if it ended; ranks that ended by themselves with
// an error; the awaited rank. Where it did not only wait, stopped ranks are reported all the same.
void judge(WorkerFailure& failure, std::span<const RankSight> sights);

}  // namespace lockstep::inline v0::launch
