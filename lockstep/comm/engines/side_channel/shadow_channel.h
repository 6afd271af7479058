// ShadowChannel: the side channel of ranks on several hosts. It uses a second instance of the same
// engine, the shadow engine, on which an all_reduce of 16 bytes precedes each collective and shows
// whether all ranks make the same one. The details of a mismatch or a late rank go through the
// job's store. The cost is the latency of that small all_reduce.
#pragma once

#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/side_channel/side_channel.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::side_channel {

// `shadow` joins the same ranks as the checked engine and is used for nothing else; it can reduce
// int64 by maximum. The store must be new to this channel and the same for all ranks. Does not
// communicate.
std::unique_ptr<SideChannel> make_shadow_channel(std::unique_ptr<Backend> shadow,
                                                 std::shared_ptr<Store> store, int rank, int size);

}  // namespace lockstep::inline v0::side_channel
