// CheckedBackend: an engine that moves bytes without asking whether all ranks mean the same call,
// behind a side channel over which they compare first. Not a public header.
//
// A collective enters the engine once every rank has shown the same one. So a different call is a
// Mismatch with both calls on all ranks, a dead peer a PeerLost with its rank, a late one a Timeout
// that says who has not arrived; and no engine ever gets parts that do not fit, at which gloo ends
// the process. Messages go to the engine at once. The price is one look at every rank before each
// collective, and that a non-blocking collective starts once the last rank has called it.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/side_channel/side_channel.h"

namespace lockstep {

// `spin`: waits may keep the processor for a while before they yield it. Of the inner engine it is
// asked that wait() on a collective may be called again after it threw Timeout.
std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner,
                                              std::unique_ptr<side_channel::SideChannel> channel,
                                              int rank, bool spin);

}  // namespace lockstep
