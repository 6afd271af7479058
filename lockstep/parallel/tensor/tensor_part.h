// The part of a model that each rank has, for modules that compute around their slices by themselves (hooks/division.h),
// by the regions of tensor_regions.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/hooks/division.h"

namespace lockstep {

// `fewer_heads`: the numbers of heads that are fewer than parts and divide them (share_head()). Keeps handles of `comm`. Sends
// nothing unless there are such, of which each makes groups: then collective.
std::shared_ptr<const hooks::ModelPart> tensor_part(const Communicator& comm, bool divides_rows,
                                                    const std::vector<int64_t>& fewer_heads = {});

}  // namespace lockstep
