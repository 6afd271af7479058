#include "lockstep/comm/types.h"

#include <cstring>
#include <numeric>

#include "lockstep/comm/capabilities.h"

namespace lockstep {

const char* to_string(Op op) {
  static constexpr const char* kNames[kOpCount] = {
      "barrier", "broadcast",      "reduce",     "all_reduce", "gather", "all_gather",
      "scatter", "reduce_scatter", "all_to_all", "send",       "recv"};
  return kNames[static_cast<int>(op)];
}

const char* to_string(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"sum", "avg",     "product", "min",
                                                         "max", "bit_and", "bit_or",  "bit_xor"};
  return kNames[static_cast<int>(op)];
}

const char* to_string(Support support) {
  static constexpr const char* kNames[] = {"native", "composed", "unsupported"};
  return kNames[static_cast<int>(support)];
}

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return "?";
  }
}

uint32_t all_dtypes() {
  return bit(at::kFloat) | bit(at::kDouble) | bit(at::kHalf) | bit(at::kBFloat16) | bit(at::kChar) |
         bit(at::kShort) | bit(at::kInt) | bit(at::kLong) | bit(at::kByte) | bit(at::kBool);
}

bool is_supported_dtype(at::ScalarType dtype) {
  return static_cast<int>(dtype) < 32 && (all_dtypes() & bit(dtype)) != 0;
}

bool is_reduction(Op op) {
  return op == Op::kReduce || op == Op::kAllReduce || op == Op::kReduceScatter;
}

bool is_rooted(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}

bool is_valid_reduction(ReduceOp op, at::ScalarType dtype) {
  const bool floating = at::isFloatingType(dtype);
  switch (op) {
    case ReduceOp::kAvg:
      return floating;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !floating;
    default:
      return true;
  }
}

at::ScalarType accumulation_type(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

namespace {

int64_t elements(const Call& call) {
  switch (call.op) {
    case Op::kGather:
    case Op::kAllGather:
    case Op::kScatter:
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
    default:
      return call.count;
  }
}

}  // namespace

namespace {

template <size_t kSize>
void put(char (&field)[kSize], const char* text) {
  const size_t n = ::strnlen(text, kSize - 1);
  std::memcpy(field, text, n);
  field[n] = '\0';
}

}  // namespace

launch::CallRecord make_record(const Call& call) {
  launch::CallRecord record;
  record.sequence = call.sequence;
  record.elements = elements(call);
  record.root = is_rooted(call.op) ? call.root : -1;
  record.peer = call.peer;
  record.tag = call.tag;
  record.moving = call.op == Op::kSend ? 1 : call.op == Op::kRecv ? 2 : 0;
  put(record.op, to_string(call.op));
  if (is_reduction(call.op)) put(record.reduce, to_string(call.reduce));
  if (call.op != Op::kBarrier) put(record.dtype, dtype_name(call.dtype));
  if (const char* file = call.site.file_name(); file != nullptr) {
    const char* slash = std::strrchr(file, '/');
    put(record.file, slash != nullptr ? slash + 1 : file);
  }
  record.line = call.site.line();
  put(record.note, call.note.text);
  record.fingerprint = fingerprint(call);
  return record;
}

std::string describe(const Call& call) {
  return launch::describe(make_record(call));
}

uint64_t fingerprint(const Call& call) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&hash](uint64_t value) {
    hash ^= value;
    hash *= 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  };
  mix(static_cast<uint64_t>(call.op));
  mix(static_cast<uint64_t>(call.dtype));
  mix(is_reduction(call.op) ? static_cast<uint64_t>(call.reduce) : 99);
  mix(static_cast<uint64_t>(call.root));
  mix(static_cast<uint64_t>(call.count));
  if (call.op != Op::kAllToAll) {
    for (const int64_t count : call.counts) mix(static_cast<uint64_t>(count));
  } else if (call.uniform) {
    mix(static_cast<uint64_t>(call.counts.front()));
  }
  if (call.note.key != 0) mix(call.note.key);
  return hash;
}

}  // namespace lockstep
