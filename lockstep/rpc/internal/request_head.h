// RequestHead: a request's properties besides its arguments, written before them. Not a public
// header.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/internal/context_state.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/rpc/rref.h"

namespace lockstep::inline v0::rpc::internal {

struct RequestHead {
  uint64_t types_hash = 0;  // 0: not compared
  std::string_view function;
  uint64_t ends_in_ns = 0;
  uint64_t order = 0;
  std::optional<ObjectId> keep;     // the result stays at the callee under this number
  std::optional<Recording> record;  // for distributed autograd
  DeviceWay way = {};               // from the caller to this process

  void write(Writer& writer) const;
  static RequestHead read(Reader& reader);
};

}  // namespace lockstep::inline v0::rpc::internal
