// init(): this process's place in its job.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How init() joins the job.
struct LOCKSTEP_API InitOptions {
  // The backend: "shm", "tcp", "hierarchical" (shm inside a host, tcp between hosts;
  // "hierarchical:gloo" and "hierarchical:mpi" use those between hosts), "gloo", "mpi" (under
  // mpirun or srun), "nccl", "peer" (CUDA devices of one host), or "local" (a world of one). "":
  // LOCKSTEP_BACKEND; otherwise local for a rank alone, shm on one host, and over several hosts
  // hierarchical, or tcp where no two ranks share one.
  std::string backend = {};
  // "env://": the launcher's environment (lockstep run, torchrun, mpirun, srun), or a rank alone
  // where there is none. "tcp://host:port": rank 0 serves the store there. "file:///path": a new
  // file that all ranks share.
  std::string init_method = "env://";
  std::optional<int> rank = {};        // needed for tcp:// and file://
  std::optional<int> world_size = {};  // likewise
  // The time-out of every wait of the communicator, and of this call.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // The secret that the ranks prove to each other; otherwise LOCKSTEP_SECRET_FD,
  // LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET. Required for tcp://.
  std::string secret = {};
  // The device on which this rank trains: "cpu", "cuda" (the visible devices, shared out among the
  // ranks of a host by local rank), "cuda:1", or "auto" (cuda where there is one); see
  // device/choose.h. "": LOCKSTEP_DEVICE. It becomes the current device of the calling thread, also
  // where init() then throws, and Communicator::device() of this communicator and its groups. Where
  // neither is set, no current device is set, and device() is the engine's: the CPU; with nccl the
  // CUDA device whose number is the local rank; with peer the device that "cuda" gives. nccl
  // carries tensors of the chosen device, which must be a CUDA device of the rank's own. peer does
  // the same, and its ranks may share a device. Other engines carry tensors of a chosen CUDA device
  // through pinned memory (staged/), and any number of ranks may share one.
  std::string device = {};
};

// Throws InvalidArgument unless InitOptions::backend may have this name. For programs that receive
// the name before there are ranks.
LOCKSTEP_API void check_backend_name(const std::string& name);

// Joins the job and returns the communicator of all its ranks, once all ranks are connected. A
// second call joins again only where the method allows it (env:// under lockstep run, local). Under
// lockstep run, stdout becomes line-buffered, so that a rank's lines appear when they are printed.
// A rank that was restarted alone (lockstep run --role NAME=COUNT,restarts=N) cannot join again
// where a former process of it has joined or begun to join; it gets InvalidArgument at once. A rank
// that replaces a dead one (--on-failure replace) meets the others in their Communicator::reform().
// Where the launcher keeps spares (--spare-ranks), a spare waits here, without a deadline, until it
// becomes a rank. Its environment is complete only then, and changes while it waits
// (launch/spare_wait.h).
// Collective: all ranks of the job.
// Throws: InvalidArgument, StoreError, Timeout (names the ranks that did not arrive), PeerLost,
// Mismatch (for a replacement: a rank of this host has ended already).
LOCKSTEP_API Communicator init(const InitOptions& options = {});

}  // namespace lockstep::inline v0
