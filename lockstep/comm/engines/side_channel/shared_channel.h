// SharedChannel: the side channel of ranks on one host, in memory that they share. Publishing and
// comparing cost two cache lines per rank.
#pragma once

#include <memory>

#include "lockstep/comm/engines/side_channel/side_channel.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::side_channel {

// The store must be new to this channel.
// Collective: all ranks call it.
// Throws: Timeout, StoreError, PeerLost, SystemError.
std::unique_ptr<SideChannel> make_shared_channel(Store& store, int rank, int size,
                                                 Deadline deadline);

}  // namespace lockstep::inline v0::side_channel
