// The options of a job: its ranks, hosts and output, and what happens when a rank fails. Pure.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/log_spec.h"
#include "lockstep/launch/roles.h"
#include "lockstep/launch/simulated_failures.h"

namespace lockstep::inline v0::launch {

// A host on which this agent starts another agent.
struct RemoteHost {
  std::string host;  // as ssh knows it: "hostB", "user@10.0.0.2"
  int number = 0;    // of the host, from 0: the order of ranks
  int ranks = 1;
};

// The job's reaction when a rank fails with an exit code other than 2, and when a host leaves or
// joins. All ranks that run together are a generation; with kRestart the job may have several, one
// after another.
enum class OnFailure {
  kStop,     // the job ends
  kRestart,  // all ranks are restarted, on the hosts that are present then
  // A rank that fails is replaced, alone; the others continue and meet its replacement
  // (comm/communicator.h, reform()). With NodesOptions::spare_nodes a host that is lost is replaced
  // as well.
  kReplace,
  // The others continue without a rank that fails (shrink()), as long as any are left; the job
  // succeeds if the remaining ranks do. On one host only.
  kShrink,
};

// The access to etcd, one of whose keys names the agent that leads.
struct EtcdAccess {
  std::vector<HostPort> endpoints;  // of its client URLs; the first that answers
  bool tls = false;
  std::string ca_cert, cert, key;  // files; "": the system's authorities, no certificate
  std::string user, password;      // "": etcd asks for none
};

// torchrun's name for a job without a name.
inline constexpr const char* kUnnamedRun = "none";

// How the agents of several hosts find each other. The first agent serves the job's store and
// leads: it numbers the ranks, and a failure on any host stops the job on all hosts, or starts a
// new generation.
struct LOCKSTEP_API NodesOptions {
  // Which agent serves the store and leads.
  enum class Server {
    kThis,        // this agent is the first
    kOther,       // another agent is
    kWhoeverCan,  // the one that can bind the endpoint
    kElected,     // the one that etcd elects
  };
  Server server = Server::kThis;  // as this agent sees it
  int nodes = 1;                  // hosts with ranks; with min_nodes below, the maximum
  int min_nodes = 0;              // this many suffice; 0: all
  // With kReplace, not 0: more hosts than `nodes` may come, at any time, and wait; so many are
  // expected. Where one with ranks is lost, except the first agent's, one that waits and may have
  // as many ranks takes its place: the ranks of the others go on and meet its ranks
  // (Communicator::reform()). Any `nodes` of the hosts begin the job; those with the lowest
  // numbers, where they come in time.
  int spare_nodes = 0;
  // This host's number, from 0, for the order of ranks; nullopt on every host: they are ordered by
  // name (node2 before node10).
  std::optional<int> number;
  // The store's endpoint, a name or an address; several (for kOther): one of them can be reached.
  // Not for kElected.
  std::vector<HostPort> endpoints;
  EtcdAccess etcd;  // for kElected
  // This host's interface towards the others, or its address; "": it is detected.
  std::string interface;
  Secret secret = Secret::generate();               // the same for all agents
  std::chrono::milliseconds join_timeout{600'000};  // until enough agents have arrived
  // When enough agents, but not all, are there: how long to wait for another one since the last
  // arrival or departure.
  std::chrono::milliseconds last_call{30'000};
  std::chrono::milliseconds beat{1000};     // an agent reports at least this often
  std::chrono::milliseconds silence{8000};  // after which one counts as vanished
  std::vector<RemoteHost> remotes;          // agents to start, through `ssh`
  std::vector<std::string> ssh;  // words before the host and the remote command; empty: OpenSSH's
  // Names of variables that the remote hosts get from this one, besides LOCKSTEP_*.
  std::vector<std::string> forward;
  std::vector<std::string> names;  // of the hosts by number, for messages; may be empty
  int lifeline = -1;  // a descriptor whose end of file ends the job on this host (ssh is gone)
};

// The text before each line of a rank's output.
enum class LinePrefix {
  kNone,
  kRank,           // "[rank]: "
  kRankAndStream,  // "[rank]<stdout>: ", as mpirun and horovodrun have it
};

// A larger number on one host is a mistake: the job would run out of descriptors and memory
// half-way.
inline constexpr int kMostRanksOfAHost = 1024;

// The options of launch(): what it starts on this host, and how.
struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments; the program is looked up on PATH
  std::string program;               // the file to execute when it is not command[0]
  // Run by each rank instead of a program, by fork alone (core/subprocess.h says when that works).
  std::function<int()> body = {};
  int nproc = 1;  // ranks on this host, 1 to kMostRanksOfAHost (0 where it only starts others)
  // The roles of the whole job's ranks; on one host they have nproc ranks. Empty: all ranks have
  // the role `role`. Roles with restarts exclude max_restarts.
  std::vector<Role> roles;
  std::map<std::string, std::string> env;  // added to this process's environment, with precedence
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL, after a failure
  // The same after SIGTERM to an agent, or when hosts join or leave: ranks may save their work. It
  // is less than the 30 s after which Slurm, Kubernetes and torchrun kill, so that there is time to
  // report how the job ended.
  std::chrono::milliseconds stop_grace{25'000};
  // Maximum number of restarts after failures other than exit code 2: of all ranks or, with
  // kReplace, of single ranks on each host.
  int max_restarts = 0;
  // Processes per host that are started before a rank needs them, with kReplace. A spare takes a
  // failed rank's place at once, since it has already done what the program does before init()
  // (spare_wait.h). Spares have no stdin; their output is shown once they are a rank.
  int spare_ranks = 0;
  // Default: kRestart with max_restarts, otherwise kStop. With kRestart, hosts that join or leave
  // also start a new generation, which does not count as a restart.
  std::optional<OnFailure> on_failure;
  // Kills ranks of this host now and then, to test how the program recovers; kills none once a rank
  // has finished (Recovery) or succeeded.
  std::optional<FailureDrill> simulate_failures;
  std::string log_dir;  // "": no files, or a new temporary folder if redirects or tee require one
  bool allow_lost_logs = false;           // otherwise lost log output turns exit code 0 into 1
  RedirectMap redirects;                  // streams that go to files only
  RedirectMap tee;                        // streams that go to files and here; overrides redirects
  std::set<int> show_ranks;               // local ranks whose output appears here; empty: all
  LinePrefix prefix = LinePrefix::kNone;  // before each line
  std::string prefix_template;            // torchrun's, instead of `prefix` (line_prefix.h)
  // "${local_rank}" in arguments becomes the local rank (torchrun's macro).
  bool substitute_local_rank = false;
  bool pin = true;               // give each rank its share of the allowed processors
  Binding binding;               // what each rank is bound to instead of its share
  bool report_bindings = false;  // a line on stderr for each rank that starts
  // Default: OMP_NUM_THREADS if set, otherwise processors / ranks, at least 1.
  std::optional<int> threads_per_rank;
  // MASTER_ADDR and MASTER_PORT, on one host. On several hosts they are detected: an address of
  // rank 0's host that the others reach, and a free port there, kept reserved for rank 0.
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;  // default: a free one
  // The start of the log folder's name, and TORCHELASTIC_RUN_ID, which is generated for a job
  // without a name.
  std::string run_id = kUnnamedRun;
  std::string role = "default";       // ROLE_NAME
  bool quiet = false;                 // no report at the end; the caller prints it
  bool stdin_for_ranks = true;        // they inherit it; false: they have none
  std::optional<NodesOptions> nodes;  // several hosts
};

// Throws InvalidArgument, one line, for options that cannot be meant so.
LOCKSTEP_API void check(const LaunchOptions& options);
// Throws InvalidArgument where spare_ranks conflicts with the other options.
LOCKSTEP_API void check_spare_ranks(const LaunchOptions& options);
// Throws InvalidArgument where nodes->spare_nodes conflicts with the other options.
LOCKSTEP_API void check_spare_nodes(const LaunchOptions& options);
// The macro in arguments that substitute_local_rank replaces.
inline constexpr std::string_view kLocalRankMacro = "${local_rank}";
// The reaction to a failure: `on_failure`, or its default.
LOCKSTEP_API OnFailure on_failure_of(const LaunchOptions& options);
// Parses --on-failure: stop, restart, replace or shrink; "": not set.
// Throws: InvalidArgument, also where it contradicts max_restarts.
LOCKSTEP_API std::optional<OnFailure> parse_on_failure(const std::string& text, int max_restarts);

}  // namespace lockstep::inline v0::launch
