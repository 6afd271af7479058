// Who shares one copy of the parameters, as a mesh says it. Pure; no libtorch.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

// Of "data=2,shard=2", as --mesh takes it, on so many ranks: rank r has copy [r], as ZeroOptions::copies wants
// them: {0, 0, 1, 1}. Ranks along `shard`, which are neighbours, share one; along `data` each has its own.
// Throws InvalidArgument: other axes, shard before another axis, and what MeshLayout throws.
std::vector<int> shared_copies(std::string_view mesh, int ranks);

// How many ranks a mesh asks for: the product of its sizes; 1 where one of them is left to others, or where it
// is more than any job has. Throws InvalidArgument as parse_axes().
int ranks_of(std::string_view mesh);

}  // namespace lockstep
