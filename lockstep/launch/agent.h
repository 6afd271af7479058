// The agent: starts the ranks of a job on this host, watches them, and says what went wrong.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/log_spec.h"
#include "lockstep/launch/roles.h"
#include "lockstep/launch/simulated_failures.h"

namespace lockstep::launch {

// An agent that this one starts on another host.
struct RemoteHost {
  std::string host;  // as ssh knows it: "hostB", "user@10.0.0.2"
  int number = 0;    // of the host, from 0: the order of ranks
  int ranks = 1;
};

// What happens when a rank fails otherwise than by exit code 2, and when a host goes or comes. All
// ranks that run together are a generation; with kRestart the job may have several, one after the
// other.
enum class OnFailure {
  kStop,     // the job ends
  kRestart,  // all ranks are started anew, on the hosts that are there then
  kReplace,  // a rank that fails is started anew, alone; the others go on and meet it again
             // (comm/communicator.h, reform())
  kShrink,  // the others go on without a rank that fails (shrink()), as long as there are any; the job ends
            // well if those that are left do. On one host.
};

// Where etcd is, whose key says which agent leads, and how it is reached.
struct EtcdAccess {
  std::vector<HostPort> endpoints;  // of its client URLs; the first that answers
  bool tls = false;
  std::string ca_cert, cert, key;  // files; "": the system's authorities, no certificate
  std::string user, password;      // "": it does not ask for one
};

// torchrun's name of a job that nobody has named.
inline constexpr const char* kUnnamedRun = "none";

// How the agents of several hosts find each other. One of them, the first, serves the job's store
// and leads: it gives the ranks their numbers, and a failure on any host stops the job on all, or
// begins a new generation.
struct NodesOptions {
  enum class Server {
    kThis,        // this agent is the first
    kOther,       // another one is
    kWhoeverCan,  // the one that can bind the endpoint
    kElected,     // the one that etcd says
  };
  Server server = Server::kThis;
  int nodes = 1;      // hosts that have ranks; with min_nodes below, at most
  int min_nodes = 0;  // so few are enough; 0: all
  // Of this host, from 0, for the order of ranks; nullopt on every host: they are ordered by name
  // (node2 before node10).
  std::optional<int> number;
  // Where the store is; several (for kOther): one that can be reached. A name or an address. Not for
  // kElected.
  std::vector<HostPort> endpoints;
  EtcdAccess etcd;        // for kElected
  std::string interface;  // this host's interface towards the others, or its address; "": found out
  Secret secret = Secret::generate();               // the same for all agents
  std::chrono::milliseconds join_timeout{600'000};  // for enough agents to be there
  // When enough but not all are there: how long to wait for another one, since the last that came
  // or went.
  std::chrono::milliseconds last_call{30'000};
  std::chrono::milliseconds beat{1000};     // an agent says at least this often that it is there
  std::chrono::milliseconds silence{8000};  // after which one counts as vanished
  std::vector<RemoteHost> remotes;          // agents to start, through `ssh`
  std::vector<std::string> ssh;  // words before the host and the remote command; empty: OpenSSH's
  // Names of variables that the remote hosts get from this one, besides LOCKSTEP_*.
  std::vector<std::string> forward;
  std::vector<std::string> names;  // of the hosts by number, for messages; may be empty
  int lifeline = -1;               // a descriptor: its end ends the job on this host (ssh is gone)
};

enum class LinePrefix {
  kNone,
  kRank,           // "[rank]: "
  kRankAndStream,  // "[rank]<stdout>: ", as mpirun and horovodrun have it
};

// More on one host is a slip of the hand: it would run out of descriptors and memory half-way.
inline constexpr int kMostRanksOfAHost = 1024;

struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments; the program is looked up on PATH
  std::string program;               // the file to execute when it is not command[0]
  int nproc = 1;  // ranks on this host, 1 to kMostRanksOfAHost (0 where it only starts others)
  // Of the whole job's ranks; on one host nproc of them. Empty: all have the role `role`. A role
  // with restarts goes without max_restarts.
  std::vector<Role> roles;
  std::map<std::string, std::string> env;  // added to this process's environment, last word
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL, after a failure
  // The same where SIGTERM came to an agent, or hosts come or go: ranks may save what they have done. Less than the
  // 30 s after which Slurm, Kubernetes and torchrun kill, so that there is time to say how it ended.
  std::chrono::milliseconds stop_grace{25'000};
  // After failures, but for exit code 2: of all ranks, or, with kReplace, of single ones, on each host
  // so often.
  int max_restarts = 0;
  // Processes a host that are started before a rank needs them, with kReplace: one takes a failed rank's place at once,
  // having done beforehand what the program does before init() (spare_wait.h). They have no stdin. Their output is shown
  // once they are a rank.
  int spare_ranks = 0;
  // Default: kRestart with max_restarts, else kStop. With kRestart, hosts that come or go begin a
  // new generation, too, which is no restart that counts.
  std::optional<OnFailure> on_failure;
  // Ranks of this host are killed now and then, to see what the program makes of it; none once one has finished (Recovery)
  // or has ended well.
  std::optional<FailureDrill> simulate_failures;
  std::string log_dir;  // "": no files, or a new temporary folder if redirects or tee ask for one
  bool allow_lost_logs = false;           // else what cannot be written there makes exit code 0 a 1
  RedirectMap redirects;                  // streams that go to files only
  RedirectMap tee;                        // streams that go to files and here; wins over redirects
  std::set<int> show_ranks;               // local ranks whose output appears here; empty: all
  LinePrefix prefix = LinePrefix::kNone;  // before each line
  std::string prefix_template;            // torchrun's, instead of `prefix` (line_prefix.h)
  bool substitute_local_rank =
      false;        // "${local_rank}" in arguments becomes the local rank (torchrun's macro)
  bool pin = true;  // give each rank its share of the allowed processors
  std::optional<int>
      threads_per_rank;  // default: OMP_NUM_THREADS if set, else processors / ranks, at least 1
  // MASTER_ADDR and MASTER_PORT, on one host. On several they are found out: an address of rank 0's
  // host that the others reach, and a free port there, kept reserved for rank 0.
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;  // default: a free one
  // The start of the log folder's name, and TORCHELASTIC_RUN_ID, which is made up for a job without a name.
  std::string run_id = kUnnamedRun;
  std::string role = "default";       // ROLE_NAME
  bool quiet = false;                 // no report at the end; the caller prints it
  bool stdin_for_ranks = true;        // they inherit it; false: they have none
  std::optional<NodesOptions> nodes;  // several hosts
};

// Throws InvalidArgument where spare_ranks does not go with the others.
void check_spare_ranks(const LaunchOptions& options);
// In arguments, with substitute_local_rank.
inline constexpr std::string_view kLocalRankMacro = "${local_rank}";
OnFailure on_failure_of(const LaunchOptions& options);
// What --on-failure says: stop, restart, replace or shrink; "": nothing. Throws InvalidArgument, also where it
// contradicts max_restarts.
std::optional<OnFailure> parse_on_failure(const std::string& text, int max_restarts);

// What an agent saw of one of its ranks when the job began to end, before any rank was told to
// stop.
struct RankSight {
  std::string host = {};  // "": this one, which is the only one
  int rank = 0;
  int pid = 0;
  std::string stopped_by = {};       // "SIGSTOP", "a debugger": it stands still; "": it does not
  std::string end = {};              // "exited with code 0": it had ended by itself; "": it had not
  bool ended_badly = false;          // so, and not with code 0
  std::string last_collective = {};  // what its communicator showed last; "": it had none
  bool gave_up = false;  // its communicator broke: another rank did not come, or was gone
  int late = -1;         // which, as far as it knew
};

struct WorkerFailure {
  std::string host;  // "": this one, which is the only one
  int rank = 0;
  std::string role;  // "ps 0": which of its role it is; "": there are no roles
  int restarts = 0;  // how often it had been started again, alone
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;                   // valid when signal == 0
  int signal = 0;                      // 0: it exited
  std::string last_collective;         // what its communicator showed last; "": it had none
  std::string message;                 // what it left in TORCHELASTIC_ERROR_FILE
  bool complete = false;               // the message says it all: the report is that line
  std::vector<std::string> tail;       // the last lines that it wrote to `tail_stream`
  std::string tail_stream = "stderr";  // or stdout, if stderr was silent
  bool gave_up = false;                // it only waited for others, in vain, as in RankSight
  int late = -1;                       // for whom, as far as it knew
  std::vector<RankSight> causes;       // of that, or just ranks that stand still (verdict.h)
  std::vector<int> waited;             // all ranks that only waited; empty unless gave_up
};

struct LaunchResult {
  // 0 done, also where SIGTERM came and all ranks then ended with 0; 2 when the first failing rank exited with 2; else
  // 1, also where nothing else failed and log files lack output; 128+n on signal n to this agent.
  int exit_code = 0;
  int restarts = 0;                      // of all ranks, after failures
  int generation = 0;                    // the last one that this host was part of, from 0
  std::optional<WorkerFailure> failure;  // the first failure of the last generation, on any host
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
// A rank whose role has restarts, and that fails otherwise than by exit code 2, is started again
// alone after a pause (supervisor.h), with what it left running killed; the others go on, and a line
// on stderr says so. The job is done when all ranks have ended with 0; with services, when all that
// are none have: services are stopped then, and how they end does not matter.
//
// With options.nodes, agents of several hosts run the job together: each calls launch(), and it
// returns on all of them once the ranks of all have ended, with the same exit code but for signals
// to one of them. An agent that vanishes (killed, its host or link gone) is a failure of the job
// that the others notice by its connection, or within `silence`; ranks end with their agent. With
// OnFailure::kRestart it is none: the others go on in a new generation if they are enough, or wait
// for join_timeout to be enough again; an agent whose link was cut joins again when it can; one that
// comes late is part of the next generation, which begins by itself while hosts are lacking; and
// SIGTERM to one of nodes > min_nodes agents, but the first, takes its host out. When the first
// agent is lost another one takes over where etcd elects it; else the job ends.
// An agent that stands still for longer than `silence` (SIGSTOP, a host that sleeps) loses its ranks to its sentinel where
// others may go on without it: not the only one of a job, nor the first where none but it may lead.
//
// When the agent itself is killed, the kernel kills the ranks, and a small process beside the agent
// what they started in turn; the kernel does so too when the thread that called launch() ends. A
// process that a rank moves to a session of its own (setsid) is ended with the ranks, but survives
// an agent that is killed. Where stdin, stdout or stderr is closed it is opened on /dev/null.
//
// Throws LaunchError, InvalidArgument: before any rank was started, or after those that were have
// been killed. Throws Timeout where the agents did not find each other, SystemError where the
// system has no room for another process or file, PeerLost where the agent that led a running job
// was lost and no other was found.
LaunchResult launch(const LaunchOptions& options);

// The report that ends a failed run: rank, pid, signal or exit code, last collective, tail of the
// log. Pure.
std::string format_failure(const WorkerFailure& failure, int world_size);

}  // namespace lockstep::launch
