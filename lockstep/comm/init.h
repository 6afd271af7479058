// init(): this process's place in its job.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep {

struct InitOptions {
  // "shm", "tcp", "hierarchical" (shm inside a host, tcp between hosts; "hierarchical:gloo" and
  // "hierarchical:mpi": those between hosts), "gloo", "mpi" (under mpirun or srun), "nccl", "peer"
  // (CUDA devices of one host), "local" (a world of one). "": LOCKSTEP_BACKEND, else local when
  // alone, shm on one host, and over several hosts hierarchical, or tcp where no two ranks share
  // one.
  std::string backend = {};
  // "env://": from the launcher's environment: lockstep run, torchrun, mpirun, srun; alone when
  // there is none. "tcp://host:port": rank 0 serves the store there. "file:///path": through a file
  // that all ranks share and that is new.
  std::string init_method = "env://";
  std::optional<int> rank = {};        // needed for tcp:// and file://
  std::optional<int> world_size = {};  // likewise
  std::chrono::nanoseconds timeout =
      std::chrono::minutes(10);  // of every wait of the communicator, and of this call
  // What the ranks prove to each other; else LOCKSTEP_SECRET_FD, LOCKSTEP_SECRET_FILE,
  // LOCKSTEP_SECRET. Needed for tcp://.
  std::string secret = {};
  // What this rank trains on: "cpu", "cuda" (the devices that are visible, shared out among the
  // ranks of a host by local rank), "cuda:1", "auto" (cuda where there is one); see
  // device/choose.h. "": LOCKSTEP_DEVICE. It becomes the current device of the calling thread, also
  // where init() then throws, and Communicator::device() of this communicator and its groups. Where
  // neither says anything, no current device is set, and device() is the engine's: the CPU; with
  // nccl the CUDA device whose number is the local rank, with peer what "cuda" gives. nccl carries
  // tensors of the chosen device, which is to be a CUDA device of the rank's own; so does peer,
  // where ranks may share one; over other engines those of a chosen CUDA device go through pinned
  // memory (staged/), and any number of ranks may share one.
  std::string device = {};
};

// Throws InvalidArgument unless InitOptions::backend may have this name: for programs that are
// given it before there are ranks.
void check_backend_name(const std::string& name);

// Joins the job and returns the communicator of all its ranks. Collective over the job: returns
// once all ranks are connected. A second call joins again only where the method allows it (env://
// under lockstep run, local). Under lockstep run, stdout becomes line-buffered, so that a rank's
// lines come when they are printed. A rank that was started again alone (lockstep run --role
// NAME=COUNT,restarts=N) cannot join again what a former process of it has joined, or begun to, and
// gets InvalidArgument at once; one that replaces a rank which died (--on-failure replace) meets the
// others in their Communicator::reform(). Where the launcher keeps spares (--spare-ranks), one waits here, without a
// deadline, until it becomes a rank: its environment is complete only then, and changes while it waits
// (launch/spare_wait.h). Throws InvalidArgument, StoreError, Timeout (names the ranks
// that did not arrive), PeerLost, Mismatch (one that replaces another: a rank of this host has ended already).
Communicator init(const InitOptions& options = {});

}  // namespace lockstep
