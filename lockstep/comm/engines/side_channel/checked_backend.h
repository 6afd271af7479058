// CheckedBackend: an engine that moves bytes without checking that all ranks make the same call,
// behind a side channel over which they compare calls first. Not a public header.
//
// A collective enters the engine once every rank has shown the same one. A different call is
// therefore a Mismatch with both calls on all ranks, a dead peer a PeerLost with its rank, and a
// late one a Timeout that says which ranks have not arrived; and the engine never gets parts that
// do not fit, at which gloo would end the process. Messages go to the engine at once. The cost is
// one look at every rank before each collective, and a non-blocking collective starts only when the
// last rank has called it.
#pragma once

#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/side_channel/side_channel.h"

namespace lockstep::inline v0 {

// The inner engine must allow wait() on a collective to be called again after it threw Timeout.
std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner,
                                              std::unique_ptr<side_channel::SideChannel> channel,
                                              int rank);

}  // namespace lockstep::inline v0
