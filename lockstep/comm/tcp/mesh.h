// Mesh: a connection between every two ranks of a group, each proved by the group's secret.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep::tcp {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  bool one_host = true;        // all ranks are on this host: loopback only
  std::string interface = {};  // or its address; "": any
};

// Collective. Every rank listens on its addresses and shows them in `store`; the higher rank of a
// pair connects to the lower one, by the first address over which that one proves that it knows the
// group's secret and is who it should be. The secret is made by rank 0 and lies in the store, which
// admits the job's ranks only. Whoever else connects is refused and logged, and holds up nobody.
// Returns the connections by rank, non-blocking, own: empty; nothing listens any more then. Throws
// Timeout that names the ranks that are missing and the addresses that were tried, InvalidArgument.
std::vector<UniqueFd> connect_mesh(Store& store, const MeshOptions& options, Deadline deadline);

}  // namespace lockstep::tcp
