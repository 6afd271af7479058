// TwinChannel: the side channel of ranks on several hosts: a second connection of the same engine,
// on which each collective is preceded by an all_reduce of 16 bytes that shows whether all ranks
// mean the same one. What is said when they do not, or when one is late, goes through the job's
// store. The price is the latency of that small all_reduce.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/side_channel/side_channel.h"
#include "lockstep/store/store.h"

namespace lockstep::side_channel {

// `twin` joins the same ranks as the engine that is checked and is used for nothing else; it
// reduces int64 by maximum. The store must be new to this channel, the same for all ranks. Does not
// communicate.
std::unique_ptr<SideChannel> make_twin_channel(std::unique_ptr<Backend> twin,
                                               std::shared_ptr<Store> store, int rank, int size);

}  // namespace lockstep::side_channel
