// CallRecord: a collective as ranks show it to each other. Not a public header.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "lockstep/comm/types.h"

namespace lockstep::side_channel {

// Fixed size, no pointers: it lies in shared memory or travels as bytes.
struct CallRecord {
  uint64_t fingerprint = 0;  // fingerprint(call): equal on ranks that make the same call
  uint64_t sequence = 0;     // of the communicator
  int64_t count = 0;         // elements that describe() names
  int32_t root = -1;
  uint32_t line = 0;
  Op op = Op::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  int8_t dtype = 0;
  char file[61] = {};  // without its folders, cut to fit, NUL-terminated
};
static_assert(sizeof(CallRecord) == 96 && std::is_trivially_copyable_v<CallRecord>);

CallRecord make_record(const Call& call);

// "#7 all_reduce sum float32 x 100 at train.cpp:12", as describe(Call).
std::string describe(const CallRecord& record);

}  // namespace lockstep::side_channel
