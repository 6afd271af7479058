// The agent: starts the ranks of a job on this host, watches them, and says what went wrong.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/call_board.h"

namespace lockstep::launch {

// Where a worker's stdout and stderr go.
enum class Redirect { kNone, kStdout, kStderr, kBoth };  // torchrun's 0, 1, 2, 3

struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments; the program is looked up on PATH
  int nproc = 1;                     // ranks on this host, at least 1
  std::map<std::string, std::string> env;  // added to this process's environment, last word
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL
  int max_restarts = 0;                    // whole-job restarts after a failure
  std::string log_dir;                     // "": no files
  std::map<int, Redirect> redirects;    // local rank -> streams that go to files only; key -1: all
  std::map<int, Redirect> tee;          // local rank -> streams that go to files and here
  bool prefix = false;                  // "[rank]: " before each line
  bool pass_local_rank = false;         // append --local-rank=N (torchrun's --no-use-env)
  bool pin = true;                      // give each rank its share of the allowed processors
  std::optional<int> threads_per_rank;  // default: processors / ranks, at least 1
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;  // default: a free port, kept reserved for rank 0
  bool quiet = false;              // no report at the end; the caller prints it
};

struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;      // valid when signal == 0
  int signal = 0;         // 0: it exited
  BoardRecord last_call;  // what its communicator showed last
  std::vector<std::string>
      tail;  // the last lines that it wrote to stderr (stdout if stderr was silent)
};

struct LaunchResult {
  int exit_code = 0;  // 0 done; 2 when the first failing rank exited with 2; else 1; 128+n on
                      // signal n to the agent
  int restarts = 0;
  std::optional<WorkerFailure> failure;  // the first failure of the last attempt
};

// Runs the job to its end. Blocks. Forwards SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 to the
// workers while it runs, and restores the former handlers. When it returns no process of its
// workers' process groups is alive. Needs no libtorch and may be called from a process that uses it
// (children are exec'ed). Throws LaunchError, InvalidArgument.
LaunchResult launch(const LaunchOptions& options);

// The report that ends a failed run: rank, pid, signal or exit code, last collective, tail of the
// log. Pure.
std::string format_failure(const WorkerFailure& failure, int world_size);

}  // namespace lockstep::launch
