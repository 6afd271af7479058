// Decides from a mesh which ranks share one copy of the parameters. Pure; no libtorch.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

// For "data=2,shard=2", as --mesh takes it, on `ranks` ranks: the copy of each rank, for
// ZeroOptions::copies: {0, 0, 1, 1}. Ranks along `shard`, which are neighbours, share one; along
// `data` each has its own.
// Throws: InvalidArgument for other axes, shard before another axis, and as MeshLayout.
std::vector<int> shared_copies(std::string_view mesh, int ranks);

// The number of ranks that a mesh requires: the product of its sizes; 1 where one size is left
// open, or where the product exceeds any job.
// Throws: InvalidArgument as parse_axes().
int ranks_of(std::string_view mesh);

}  // namespace lockstep::inline v0
