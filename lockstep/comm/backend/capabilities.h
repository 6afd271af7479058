// The abilities of a backend, as data: read by dispatch, tests, benches and docs.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How an operation is done on a backend.
enum class Support : uint8_t {
  kNative,       // the engine does it
  kComposed,     // Communicator makes it from what the engine does
  kUnsupported,  // refused with InvalidArgument before any byte is sent
};
const char* to_string(Support support);  // "native", ...

// The engine's own abilities; Communicator derives Support from them (compose.h).
struct Capabilities {
  std::string backend;  // "local", "shm", "gloo"
  c10::Device device{
      // The device whose memory it moves; Communicator copies other memory to it and back.
      c10::kCPU};
  bool deterministic = false;  // reductions give the same bits on every rank and in every run
  bool rank_order = false;     // ... and add in rank order at every size
  bool float32_accumulation = false;   // float16 and bfloat16 are summed in float32, rounded once
  bool authenticated = false;          // peers prove the job's secret before they may join
  bool stream_ordered = false;         // a wait orders a device's stream and lets the host go on
  bool processes = false;              // ranks may be processes
  bool tags = false;                   // send and recv match by tag, out of order too
  bool probe = false;                  // probe() works
  bool shared_memory = false;          // shared_empty() works
  std::array<bool, kOpCount> ops{};    // native operations with equal parts
  std::array<bool, kOpCount> v_ops{};  // ... with unequal parts
  uint32_t move_dtypes = 0;            // bit i: at::ScalarType(i) can be moved as itself
  uint32_t reduce_dtypes = 0;          // bit i: ... can be reduced
  uint32_t float_reduce_ops = 0;       // bit i: ReduceOp(i) on floating point
  uint32_t integer_reduce_ops = 0;     // bit i: ReduceOp(i) on integers
  uint32_t bool_reduce_ops = 0;        // bit i: ReduceOp(i) on bool, with the meaning of types.h
};

// The bit of a dtype or a reduction in the sets of Capabilities.
constexpr uint32_t bit(at::ScalarType dtype) {
  return uint32_t{1} << static_cast<int>(dtype);
}
constexpr uint32_t bit(ReduceOp op) {
  return uint32_t{1} << static_cast<int>(op);
}
// All dtypes that types.h names.
LOCKSTEP_API uint32_t all_dtypes();

}  // namespace lockstep::inline v0
