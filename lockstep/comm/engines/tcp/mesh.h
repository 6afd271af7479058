// Mesh: a connection between every two ranks of a group, each authenticated with the group's
// secret.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::tcp {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  bool one_host = true;        // all ranks are on this host: loopback only
  std::string interface = {};  // or its address; "": any
};

// Every rank listens on its addresses and shows them in `store`. The higher rank of a pair connects
// to the lower one, by the first address at which that rank proves that it knows the group's secret
// and is the right one. Rank 0 makes the secret and puts it in the store, which admits the job's
// ranks only. Other connections are refused and logged, and delay no rank. Returns the connections
// by rank, non-blocking, empty for this rank; all listeners are closed then.
// Collective: all ranks of the group.
// Throws: Timeout that names the missing ranks and the addresses that were tried, InvalidArgument.
std::vector<UniqueFd> connect_mesh(Store& store, const MeshOptions& options, Deadline deadline);

}  // namespace lockstep::inline v0::tcp
