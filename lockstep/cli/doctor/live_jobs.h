// The jobs that run on this host, found by the call boards that their processes hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::cli {

struct LiveJob {
  int launcher = 0;            // its pid
  std::vector<int> processes;  // that hold the board
  trace::CallBoard board;
};

// Those of this user, and, for root, of all. Processes that end meanwhile are passed over.
std::vector<LiveJob> find_live_jobs();
// The one of a launcher or of one of its ranks.
// Throws: DataError that says which there are.
LiveJob find_live_job(int pid);

// What its ranks have called, all read now; those alone that have joined and still run. Empty once
// there are none.
std::vector<trace::TraceFile> read_live(const LiveJob& job);

// `lockstep doctor --live`: prints what look_live() says of the job `pid`, of all jobs for 0, every
// `every` seconds, `times` times; for 0, until they are over. Returns 1 where a rank was late at
// the last look, else 0.
// Throws: DataError where there is no job.
struct LiveOptions {
  int pid = 0;
  double every = 1;
  int times = 0;
};
int show_live(const LiveOptions& options);

}  // namespace lockstep::cli
