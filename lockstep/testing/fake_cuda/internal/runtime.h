// The CUDA runtime's functions on the devices that the host plays: what FakeCuda's libcudart.so.13
// stands on. Not a public header.
//
// Memory and events can be shared with other processes of the host. What a process does to memory
// of another one is compared with what it did itself, and with no other thread's operations: vector
// clocks end at the process.
#pragma once

#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

namespace lockstep::inline v0::testing::fake {

const RuntimeTable& runtime_table();

}  // namespace lockstep::inline v0::testing::fake
