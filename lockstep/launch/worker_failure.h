// How a rank failed, and what its agent saw of the others then.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::launch {

// An agent's observation of one of its ranks when the job began to end, before any rank was told to
// stop.
struct RankSight {
  std::string host = {};  // "": this host, which is the only one
  int rank = 0;
  int pid = 0;
  std::string stopped_by = {};       // "SIGSTOP", "a debugger": it is stopped; "": it is not
  std::string end = {};              // "exited with code 0": it had ended by itself; "": it had not
  bool ended_badly = false;          // it had, and not with code 0
  std::string last_collective = {};  // the last one that its communicator showed; "": it had none
  bool gave_up = false;              // its communicator broke: another rank was late or gone
  int late = -1;                     // that rank, as far as it knew
};

// A rank that failed.
struct WorkerFailure {
  std::string host;  // "": this host, which is the only one
  int rank = 0;
  std::string role;  // "ps 0": its number within its role; "": there are no roles
  int restarts = 0;  // how often it had been restarted alone
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;                   // valid when signal == 0
  int signal = 0;                      // 0: it exited
  std::string last_collective;         // the last one that its communicator showed; "": it had none
  std::string message;                 // the text that it left in TORCHELASTIC_ERROR_FILE
  bool complete = false;               // the message is complete: the report is that line
  std::vector<std::string> tail;       // the last lines that it wrote to `tail_stream`
  std::string tail_stream = "stderr";  // or stdout, if stderr was silent
  bool gave_up = false;                // it only waited for others, as in RankSight
  int late = -1;                       // the rank that it waited for, as far as it knew
  std::vector<RankSight> causes;  // the ranks that caused it, or just stopped ranks (verdict.h)
  std::vector<int> waited;        // all ranks that only waited; empty unless gave_up
};

}  // namespace lockstep::inline v0::launch
