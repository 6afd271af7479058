// The vocabulary of communication: operations, reductions, and one call as data.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0 {

// The operations of a communicator.
enum class Op : uint8_t {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllReduce,
  kGather,
  kAllGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kSend,
  kRecv,
};
// The number of operations.
inline constexpr int kOpCount = 11;

// kAvg divides the sum by the number of ranks; floating point only. kBitAnd, kBitOr, kBitXor:
// integers and bool only. On bool, sum and max are "or", product and min are "and" (as in PyTorch
// over NCCL).
enum class ReduceOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };
// The number of reductions.
inline constexpr int kReduceOpCount = 8;

// The result that a receive from a rank would find now.
enum class Probe : uint8_t {
  kNothing,  // no message of that tag yet
  kMessage,  // a message that no receive has claimed
  kLeft,     // no message, and none will come: the rank has left the group
};

const char* to_string(Op op);                  // "all_reduce"
const char* to_string(ReduceOp op);            // "sum"
const char* dtype_name(at::ScalarType dtype);  // "float32"; "?" for one that no collective carries

// float32, float64, float16, bfloat16, int8, int16, int32, int64, uint8, bool.
LOCKSTEP_API bool is_supported_dtype(at::ScalarType dtype);
LOCKSTEP_API bool is_reduction(Op op);
LOCKSTEP_API bool is_rooted(Op op);
// False for avg on integers and bool, and bitwise operations on floating point.
LOCKSTEP_API bool is_valid_reduction(ReduceOp op, at::ScalarType dtype);
// The type in which `dtype` is summed up: float32 for float16 and bfloat16, else itself.
LOCKSTEP_API at::ScalarType accumulation_type(at::ScalarType dtype);

// A line of a program, for error messages.
class LOCKSTEP_API Site {
 public:
  constexpr Site() = default;
  constexpr Site(const std::source_location& place)  // NOLINT(google-explicit-constructor)
      : file_(place.file_name()), line_(place.line()) {}
  // For bindings: a line of a program in another language. `file` must stay valid.
  constexpr Site(const char* file, uint32_t line) : file_(file), line_(line) {}
  // The caller's line or, as the default of a function's argument, the line where that function is
  // called.
  static constexpr Site current(const char* file = __builtin_FILE(),
                                uint32_t line = __builtin_LINE()) {
    return {file, line};
  }

  // As the compiler or the binding gave it.
  constexpr const char* file_name() const { return file_; }
  constexpr uint32_t line() const { return line_; }  // from 1; 0: unknown

 private:
  const char* file_ = "";
  uint32_t line_ = 0;
};

// A library's own name for a call; ranks whose notes differ are out of step.
struct CallNote {
  uint64_t key = 0;       // part of the fingerprint
  const char* text = "";  // at most 47 characters are kept; copied when the call starts
};
// The note with `text`, which must live until the call starts; different texts give different keys.
LOCKSTEP_API CallNote call_note(const std::string& text);

// One operation of one rank, as a backend gets it: raw views of contiguous memory that stay valid
// until the operation is complete. Counts are in elements of `dtype`. The fields of each operation:
//   barrier         none
//   broadcast       output (on the root: what is sent), count
//   reduce          input, count; output on the root only (may be input)
//   all_reduce      input, output (may be the same), count
//   gather          input, counts[r] = elements of rank r; output on the root: all parts in order
//   all_gather      input (may be the rank's own part of output), counts; output on every rank
//   scatter         input on the root: all parts in order, counts; output: counts[rank] elements
//   reduce_scatter  input: all parts in order, counts; output: counts[rank] elements
//   all_to_all      input: counts[r] elements for rank r, in order; output: recv_counts[r] elements
//                   from rank r
//   send            input, count, peer, tag
//   recv            output, count, peer, tag
// `counts` is the same on all ranks, but for all_to_all. Input and output do not overlap unless
// said so above.
struct Call {
  Op op = Op::kBarrier;
  at::ScalarType dtype = at::kByte;
  ReduceOp reduce = ReduceOp::kSum;
  int root = -1;
  int peer = -1;
  int tag = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
  std::vector<int64_t> counts;
  std::vector<int64_t> recv_counts;
  bool uniform = false;  // the parts of all ranks all have counts[0] elements
  // Its number on its communicator, from 1; sends and receives count separately.
  uint64_t sequence = 0;
  CallNote note;
  Site site;
  // The record of this call, if it has been made; valid while the call starts.
  const trace::CallRecord* record = nullptr;
  // On a device, the work that must precede the call: DeviceOrder::mark() of the caller's thread at the
  // time of the call, since the call may start later and on another thread. Null: none.
  std::shared_ptr<void> after = nullptr;
};

// The description of a call for others: on the board, in the trace, in a peer's error message.
LOCKSTEP_API trace::CallRecord make_record(const Call& call);
// "all_reduce sum float32 x 421642 at trainer.cpp:120".
LOCKSTEP_API std::string describe(const Call& call);
// Equal on all ranks that make the same call in the same way. It differs, with high probability,
// when operation, dtype, reduction, root or counts differ.
LOCKSTEP_API uint64_t fingerprint(const Call& call);
// The FNV-1a hash of a text. Unlike std::hash it is the same with every standard library.
LOCKSTEP_API uint64_t fingerprint(std::string_view text);

}  // namespace lockstep::inline v0
