// Collectives as calls of NCCL. Not a public header.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/nccl/nccl_library.h"

namespace lockstep::inline v0::nccl {

Capabilities capabilities_on(c10::Device device);

// The communicator and the stream that a call is given to.
struct Target {
  const Functions& functions;
  Comm comm;
  Stream stream;
  int rank;
  int size;
  void* word;  // a byte on the device, for barriers
};

// Gives NCCL a collective that capabilities_on() has. Returns what NCCL says, kInProgress included.
Result submit(const Call& call, const Target& target);

}  // namespace lockstep::inline v0::nccl
