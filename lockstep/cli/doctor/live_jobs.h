// The jobs that run on this host, found by the call boards that their processes hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::cli {

struct LiveJob {
  int launcher = 0;            // its pid
  std::vector<int> processes;  // the holders of the board
  trace::CallBoard board;
};

// Finds the jobs of this user, and for root all jobs. Processes that end meanwhile are left out.
std::vector<LiveJob> find_live_jobs();
// Finds the job of a launcher or of one of its ranks.
// Throws: DataError that lists the jobs.
LiveJob find_live_job(int pid);

// Reads the calls of all ranks now. It has those that have joined and still run, and is empty once
// there are none.
std::vector<trace::TraceFile> read_live(const LiveJob& job);

// `lockstep doctor --live`: prints the result of look_live() for the job `pid`, or for all jobs if
// it is 0, every `every` seconds, `times` times, or until the jobs end if that is 0. Returns 1
// where a rank was late at the last look, otherwise 0.
// Throws: DataError where there is no job.
struct LiveOptions {
  int pid = 0;
  double every = 1;
  int times = 0;
};
int show_live(const LiveOptions& options);

}  // namespace lockstep::inline v0::cli
