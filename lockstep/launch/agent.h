// The agent: starts the ranks of a job on this host, watches them, and reports failures.
#pragma once

#include <optional>

#include "lockstep/core/export.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/worker_failure.h"

namespace lockstep::inline v0::launch {

// How a job ended.
struct LaunchResult {
  // 0: success, also where all ranks ended with 0 after SIGTERM. 2: the first failing rank exited
  // with 2. 128+n: signal n to this agent. 1: otherwise, also where log files lack output and
  // nothing else failed.
  int exit_code = 0;
  int restarts = 0;                      // of all ranks, after failures
  int generation = 0;                    // the last one that this host was part of, from 0
  std::optional<WorkerFailure> failure;  // the first failure of the last generation, on any host
};

// Runs the job to its end. Blocks. While it runs it forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT,
// SIGUSR1 and SIGUSR2 to the workers (signals that the process ignores stay ignored), and restores
// the former handlers afterwards; a second SIGINT or SIGTERM kills at once. The ranks inherit
// stdin, as torchrun's do. When it returns, no process of its workers' process groups is alive. It
// needs no libtorch and may be called from a process that uses it (children are exec'ed).
//
// Output appears here line by line, and lines never mix. A rank's first lines of stderr are held
// for up to 150 ms, so that a complaint that all ranks make in the same words before they exit with
// 2 is shown once. On a terminal rank 0 gets LOCKSTEP_TTY=1 and LOCKSTEP_COLUMNS, and its output up
// to a "\r" appears at once.
//
// A rank whose role has restarts, and that fails with an exit code other than 2, is restarted alone
// after a pause (supervisor.h); its surviving children are killed. The others continue, and a line
// on stderr reports it. The job is done when all ranks have ended with 0. With services it is done
// when all other ranks have; services are stopped then, and their exit codes do not matter.
//
// With options.nodes, agents of several hosts run the job together: each calls launch(), which
// returns on all of them once the ranks of all have ended, with the same exit code except for
// signals to one of them. An agent that vanishes (killed, its host or link gone) is a failure of
// the job, which the others notice by its connection, or within `silence`; ranks end with their
// agent. With spare_nodes it is no failure where another host comes and takes its place, while the
// other ranks go on; nor after all ranks have seen that all have done their last step (Recovery,
// Trainer). With OnFailure::kRestart it is no failure: the others continue in a new generation if
// they are enough, or wait for join_timeout until they are. An agent whose link was cut joins again
// when it can. A late agent is part of the next generation, which starts by itself while hosts are
// missing. SIGTERM to one of nodes > min_nodes agents, except the first, removes its host. When the
// first agent is lost another one takes over where etcd elects it; otherwise the job ends. An agent
// that is stopped for longer than `silence` (SIGSTOP, a sleeping host) loses its ranks to its
// sentinel where others may continue without it. This applies neither to the only agent of a job
// nor to the first where no other may lead.
//
// When the agent itself is killed, the kernel kills the ranks, and a small process beside the agent
// kills their children; the kernel also kills the ranks when the thread that called launch() ends.
// A process that a rank moves to a session of its own (setsid) is ended with the ranks, but
// survives an agent that is killed. A closed stdin, stdout or stderr is opened on /dev/null.
//
// Throws: LaunchError, InvalidArgument: before any rank was started, or after the started ones have
// been killed. Timeout where the agents did not find each other, SystemError where the system has
// no room for another process or file, PeerLost where the agent that led a running job was lost and
// no other was found.
LOCKSTEP_API LaunchResult launch(const LaunchOptions& options);

}  // namespace lockstep::inline v0::launch
