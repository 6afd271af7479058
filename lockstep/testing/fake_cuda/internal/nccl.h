// Collectives between the devices of this process, as NCCL has them: what FakeCuda's libnccl.so.2
// stands on. Ranks are threads. Not a public header.
//
// What NCCL promises and what it does not is kept: an operation, or a group of them, is one piece
// of work on its stream; it begins when all before it on the stream is over, and ends when its
// peers' have begun too and the data is there. So a receive that is waiting keeps the send behind
// it on the same stream from starting. It ends really late, on a thread of its own, some
// milliseconds after. The first message between two ranks connects them, and the call is in
// progress until both have called; two ranks of a communicator on one device are refused.
#pragma once

#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

namespace lockstep::inline v0::testing::fake {

const NcclTable& nccl_table();

}  // namespace lockstep::inline v0::testing::fake
