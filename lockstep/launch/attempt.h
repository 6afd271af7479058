// Attempt: the ranks of a job, started once and watched to their end.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/secret.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/call_board.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/log_folder.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/signal_pipe.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/launch/worker.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {

// What the agent keeps over all attempts. Everything outlives the attempt.
struct AgentContext {
  const LaunchOptions& options;
  const LogFolder* logs;  // nullptr: none
  SignalPipe& signals;
  Console& out;
  Console& err;
};

struct AttemptResult {
  std::optional<WorkerFailure> failure;
  std::optional<int> stop_signal;
};

class Attempt {
 public:
  // Opens a store with a secret of its own, and starts the ranks. Throws LaunchError; then none is
  // left.
  Attempt(const AgentContext& context, int restart_count);

  // Until every rank and everybody else in their process groups has ended, and all output is
  // written.
  AttemptResult run();

 private:
  using Time = Supervisor::Time;

  void start_rank(int rank, int restart_count);
  void watch();            // until the ranks have ended
  void end_groups();       // until nobody of their process groups is left
  void write_rest();       // until the console has taken all output
  void wait_for_events();  // one poll, and all input that it found
  void obey(const std::vector<SignalOrder>& orders);
  void look_for_exits();
  void show_complaint_once(int complaining_rank);
  bool any_group_alive();
  WorkerFailure describe(const RankExit& exit) const;

  const AgentContext& context_;
  const LaunchOptions& options_;
  const Secret secret_;
  UniqueFd secret_file_;
  CallBoard board_;
  TcpStoreServer store_;
  PortReservation master_port_;
  Supervisor supervisor_;
  std::vector<std::unique_ptr<Worker>> workers_;
  bool reader_lost_ = false;
};

}  // namespace lockstep::launch
