// Attempt: the ranks of one generation on this host, started and watched to their end. A rank whose
// role has restarts may be restarted alone meanwhile.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/secret.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/failed_devices.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/log_folder.h"
#include "lockstep/launch/node_plan.h"
#include "lockstep/launch/peers.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/sentinel.h"
#include "lockstep/launch/signal_pipe.h"
#include "lockstep/launch/spares.h"
#include "lockstep/launch/strays.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/launch/worker.h"
#include "lockstep/launch/worker_failure.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_writer.h"

namespace lockstep::inline v0::launch {

// The agent's state that outlives attempts. Everything outlives the attempt.
struct AgentContext {
  const LaunchOptions& options;
  const LogFolder* logs;  // nullptr: none
  SignalPipe& signals;
  Console& out;
  Console& err;
  LostOutput& lost;
  FailedDevices& devices;
};

// The job, as the ranks of this host must know it. Everything outlives the attempt.
struct AttemptJob {
  NodePlan node;
  const Secret& secret;  // of the store
  Peers& peers;
};

struct AttemptResult {
  bool failed = false;             // a rank here failed
  std::optional<int> stop_signal;  // the signal to this agent that ended the job, or its part in it
  bool was_stopping = false;       // the ranks here had been told to stop before that signal
  std::string output_failure;      // why the agent's own output could not be written; "": it was
  bool hurried = false;  // a signal asked for an end, whether or not the output is still read
};

class Attempt {
 public:
  // Starts the ranks.
  // Throws: LaunchError after it has ended all that it started.
  Attempt(const AgentContext& context, const AttemptJob& job);

  // Waits until every rank and all processes in their process groups have ended, on the other hosts
  // too, and until it is known what follows: the job is over, another generation has begun, the
  // first agent is lost, or this host has left. Where no other generation may follow, it also waits
  // until all output is written; otherwise the consoles keep the rest.
  AttemptResult run();

 private:
  using Time = Supervisor::Time;

  struct Streams {
    StreamPlan out, err;
    std::filesystem::path folder;  // the folder of the log files; "": there are none
  };

  std::unique_ptr<Worker> start_rank(int rank, Streams streams);
  std::unique_ptr<Worker> start_spare(int link);
  // nullptr: no spare is available
  std::unique_ptr<Worker> take_spare(int rank, const Streams& streams);
  void start_again(int rank);
  Streams streams_of(int rank);
  Variables variables_of(int rank, const std::string& error_file);
  std::vector<int> cpus_of(int rank) const;
  void say_binding(int rank);
  void keep_spares();
  int spares_needed() const;
  void tend_spares();
  void say_end(const RankExit& exit, bool left_behind);
  void watch();  // until the ranks have ended
  void simulate_failures();
  // In attempt_still.cpp.
  std::string stands_still_by(int rank) const;
  bool looks_for_still_ranks() const;
  bool any_gave_up();
  void end_still_ranks();
  void say_about_still_ranks(AgentMessage::Kind kind);
  void replace_still_rank(int rank, const std::string& by);
  void leave_still_ranks();
  bool may_go_on(int rank) const;
  bool one_stood_still_for(int rank) const;
  bool any_stands_still() const;
  bool waits_for_word(const RankExit& exit);
  void excuse_who_waited(std::vector<RankExit>& exits) const;
  // Tells the sentinel how long the ranks here may run without another sign of this agent; ends
  // them where that time is over.
  void hold_ranks();
  void report_failure();
  void end_groups();  // until no process of their process groups, or that left them, lives
  void end_living_groups();
  void signal_all(int signal);
  void wait_for_the_others();
  void add_ranks(PollSet& polls);
  void add_consoles(PollSet& polls);
  // One poll of everything, and all input that it found.
  void wait_for_events(std::optional<Time> until = {});
  void take_signal(int signal);
  bool asks_to_leave(int signal);
  void look_for_leave();
  void leave_for_another_host();
  void take_orders();
  void say_if_served();
  void say_lost_output();
  void obey(const std::vector<SignalOrder>& orders);
  std::vector<SignalOrder> orders_of_signal(int signal, bool relayed = false);
  void write_traces(const std::string& reason);
  void write_last_traces(const std::string& reason);
  void look_for_exits();
  void show_complaint_once(int complaining_rank);
  bool any_group_alive();
  RankExit rank_to_blame() const;
  WorkerFailure describe(const RankExit& exit) const;
  void look_at_ranks();  // once, before any rank is told to stop
  void note_end(const RankExit& exit);
  void look_at_board();  // for new reports of the ranks
  void look_for_the_end();
  void note_device(const RankExit& exit);

  const AgentContext& context_;
  const LaunchOptions& options_;
  const AttemptJob job_;
  const int ranks_;                    // on this host
  const std::vector<RankCpus> bound_;  // by local rank; empty: each rank has its share
  UniqueFd secret_file_;
  UniqueFd no_input_;  // for ranks without stdin, and for spares
  trace::CallBoard board_;
  const trace::TraceWriter traces_;
  bool last_traces_written_ = false;
  Supervisor supervisor_;
  std::vector<RankExit> exits_;  // so far, of processes that were not restarted
  Sentinel sentinel_;
  std::optional<SimulatedFailures> failures_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by local rank
  // Earlier processes of restarted ranks whose process groups are still alive.
  std::vector<std::unique_ptr<Worker>> former_;
  Strays strays_;
  std::vector<RankSight> sights_;   // by local rank
  std::vector<bool> past_end_;      // by local rank: it has seen that all have done their last step
  std::vector<bool> handles_term_;  // by local rank, once looked_: it does not die of SIGTERM
  bool looked_ = false;             // the job has begun to end
  // A rank that is stopped while others wait for it in vain, or have continued without it.
  struct Still {
    std::optional<Time> since = {};  // since when it is stopped
    bool killed = false;             // for that reason
    Time begun = {};                 // the start of its process; the first one: long ago
    // It has ended because it only waited; until then the rank that it waited for may be found.
    std::optional<Time> waits_for_word = {};
  };
  std::vector<Still> still_;             // by local rank
  std::optional<Time> still_killed_at_;  // of the latest replaced rank
  Time left_at_{};                       // when the others continued without the latest failed rank
  Time look_for_still_at_{};
  Time say_that_others_wait_at_{};
  bool said_lost_output_ = false;
  bool reader_lost_ = false;
  bool said_served_ = false;
  bool lapsed_ = false;  // the others have given this agent up while it was stopped
  bool leaves_ = false;  // the others continue without this host
  // Until then the first agent says whether another host takes this one's place.
  std::optional<Time> leaves_by_;
  std::optional<int> stop_signal_;  // the first to this agent that ends the job, or its part in it
  int signals_ = 0;                 // number of signals
  std::optional<Spares> spares_;
};

}  // namespace lockstep::inline v0::launch
