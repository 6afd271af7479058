// agree: ranks that are about to do the same are told where they are not.
//
//   agree(comm, "tensor lm", {{"config", fingerprint(to_json(config))}, {"random", random_fingerprint()}});
//
// It is a call like any other, of one byte, whose note is compared: so ranks that differ get the Mismatch of calls that
// differ, with the texts of both ("tensor lm: config 1a2b3c4d, random 5e6f7a8b") and the lines that called.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0 {

struct AgreedValue {
  const char* name;
  uint64_t fingerprint;  // of which 8 digits are shown and all compared
};

// Collective. Throws Mismatch on all ranks alike, and what the communicator throws. Cost: an all_reduce of one byte.
void agree(const Communicator& comm, const std::string& what,
           std::initializer_list<AgreedValue> values = {},
           Communicator::Site site = Communicator::Site::current());

// A fingerprint of a tensor's shape, type and bits, at some 10 GB a second. A tensor on a device
// counts without its bits, for which the host would have to wait.
uint64_t tensor_fingerprint(const at::Tensor& tensor);
// A fingerprint of the default CPU generator here, for ranks about to draw the same. Does not draw.
uint64_t random_fingerprint();

}  // namespace lockstep::inline v0
