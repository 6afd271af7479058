// The part of a model that each rank has, for modules that compute with their slices by themselves
// (hooks/division.h), by the regions of tensor_regions.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/hooks/division.h"

namespace lockstep::inline v0 {

// `fewer_heads`: the numbers of heads that are fewer than parts and divide them (share_head()).
// Keeps handles of `comm`. Collective where there are such, for which it makes groups.
std::shared_ptr<const hooks::ModelPart> tensor_part(const Communicator& comm, bool divides_rows,
                                                    const std::vector<int64_t>& fewer_heads = {});

}  // namespace lockstep::inline v0
