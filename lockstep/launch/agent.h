// The agent: starts the ranks of a job on this host, watches them, and says what went wrong.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/call_board.h"
#include "lockstep/launch/log_spec.h"

namespace lockstep::launch {

struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments; the program is looked up on PATH
  std::string program;               // the file to execute when it is not command[0]
  int nproc = 1;                     // ranks on this host, at least 1
  std::map<std::string, std::string> env;  // added to this process's environment, last word
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL
  int max_restarts = 0;   // whole-job restarts after a failure (but for exit code 2)
  std::string log_dir;    // "": no files, or a new temporary folder if redirects or tee ask for one
  RedirectMap redirects;  // streams that go to files only
  RedirectMap tee;        // streams that go to files and here; wins over redirects
  std::set<int> show_ranks;  // local ranks whose output appears here; empty: all
  bool prefix = false;       // "[rank]: " before each line
  bool substitute_local_rank =
      false;        // "${local_rank}" in arguments becomes the local rank (torchrun's macro)
  bool pin = true;  // give each rank its share of the allowed processors
  std::optional<int>
      threads_per_rank;  // default: OMP_NUM_THREADS if set, else processors / ranks, at least 1
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;  // default: a free port, kept reserved for rank 0
  std::string run_id = "none";     // TORCHELASTIC_RUN_ID, and the start of the log folder's name
  std::string role = "default";    // ROLE_NAME
  bool quiet = false;              // no report at the end; the caller prints it
};

struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;                   // valid when signal == 0
  int signal = 0;                      // 0: it exited
  BoardRecord last_call;               // what its communicator showed last; pid 0: it had none
  std::string message;                 // what it left in TORCHELASTIC_ERROR_FILE
  std::vector<std::string> tail;       // the last lines that it wrote to `tail_stream`
  std::string tail_stream = "stderr";  // or stdout, if stderr was silent
};

struct LaunchResult {
  int exit_code = 0;  // 0 done; 2 when the first failing rank exited with 2; else 1; 128+n on
                      // signal n to the agent
  int restarts = 0;
  std::optional<WorkerFailure> failure;  // the first failure of the last attempt
};

// Runs the job to its end. Blocks. Forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2
// to the workers while it runs (those that the process ignores stay ignored), and restores the
// former handlers; a second SIGINT or SIGTERM kills at once. The ranks inherit stdin, as torchrun's
// do. When it returns no process of its workers' process groups is alive. Needs no libtorch and may
// be called from a process that uses it (children are exec'ed).
//
// Output appears here line by line, never mixed within a line. A rank's first lines of stderr are
// held for up to 150 ms, so that a complaint which all ranks make in the same words before they
// exit with 2 is shown once. On a terminal rank 0 gets LOCKSTEP_TTY=1 and LOCKSTEP_COLUMNS, and
// what it prints up to a "\r" appears at once.
//
// When the agent itself is killed, the kernel kills the ranks (not what they started in turn); it
// does so too when the thread that called launch() ends. A process that a rank moves to a session
// of its own (setsid) is not followed. Throws LaunchError, InvalidArgument: before any rank was
// started, or after those that were have been killed.
LaunchResult launch(const LaunchOptions& options);

// The report that ends a failed run: rank, pid, signal or exit code, last collective, tail of the
// log. Pure.
std::string format_failure(const WorkerFailure& failure, int world_size);

}  // namespace lockstep::launch
