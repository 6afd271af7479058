#include "lockstep/comm/backend/types.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "lockstep/comm/backend/capabilities.h"

namespace lockstep::inline v0 {

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

// Texts of fixed size, which are copied without searching for their end.
struct OpName {
  char text[16];
};
struct ReduceName {
  char text[8];
};
struct DtypeName {
  char text[12];
};

template <typename Name>
Name padded(const char* text) {
  Name name{};
  std::memcpy(name.text, text, std::min(std::strlen(text), sizeof name.text - 1));
  return name;
}

struct Names {
  std::array<OpName, kOpCount> ops;
  std::array<ReduceName, kReduceOpCount> reductions;
  std::array<DtypeName, 32> dtypes;
  Names() {
    for (int i = 0; i < kOpCount; ++i) ops[i] = padded<OpName>(to_string(static_cast<Op>(i)));
    for (int i = 0; i < kReduceOpCount; ++i)
      reductions[i] = padded<ReduceName>(to_string(static_cast<ReduceOp>(i)));
    for (int i = 0; i < 32; ++i)
      dtypes[i] = padded<DtypeName>(dtype_name(static_cast<at::ScalarType>(i)));
  }
};

// Stores the last component of a path.
void put_file(char (&field)[44], const char* path) {
  const size_t n = std::strlen(path);
  const size_t longest = std::min(n, sizeof field - 1);
  const char* tail = path + (n - longest);
  if (const void* slash = ::memrchr(tail, '/', longest); slash != nullptr)
    tail = static_cast<const char*>(slash) + 1;
  std::memcpy(field, tail, static_cast<size_t>(path + n - tail));
}

}  // namespace

trace::CallRecord make_record(const Call& call) {
  static const Names kNames;
  trace::CallRecord record;
  record.sequence = call.sequence;
  record.fingerprint = fingerprint(call);
  record.elements = elements(call);
  record.root = is_rooted(call.op) ? call.root : -1;
  record.peer = call.peer;
  record.tag = call.tag;
  record.moving = call.op == Op::kSend ? 1 : call.op == Op::kRecv ? 2 : 0;
  std::memcpy(record.op, kNames.ops[static_cast<size_t>(call.op)].text, sizeof record.op);
  if (is_reduction(call.op)) {
    std::memcpy(record.reduce, kNames.reductions[static_cast<size_t>(call.reduce)].text,
                sizeof record.reduce);
  }
  if (call.op != Op::kBarrier) {
    std::memcpy(record.dtype, kNames.dtypes[static_cast<size_t>(call.dtype) % 32].text,
                sizeof record.dtype);
  }
  if (const char* file = call.site.file_name(); file != nullptr) put_file(record.file, file);
  record.line = call.site.line();
  if (*call.note.text != '\0') {
    const size_t n = ::strnlen(call.note.text, sizeof record.note - 1);
    std::memcpy(record.note, call.note.text, n);
  }
  return record;
}

std::string describe(const Call& call) {
  return trace::describe(make_record(call));
}

uint64_t fingerprint(const Call& call) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&hash](uint64_t value) {
    hash ^= value;
    hash *= 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  };
  // One word, because a small call waits for the chain of multiplications.
  const auto byte = [](auto value) { return static_cast<uint64_t>(static_cast<uint8_t>(value)); };
  mix(byte(call.op) | byte(call.dtype) << 8 |
      (is_reduction(call.op) ? byte(call.reduce) : uint64_t{99}) << 16 |
      static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32);
  mix(static_cast<uint64_t>(call.count));
  if (call.op != Op::kAllToAll) {
    for (const int64_t count : call.counts) mix(static_cast<uint64_t>(count));
  } else if (call.uniform) {
    mix(static_cast<uint64_t>(call.counts.front()));
  }
  // A key may be made of the same call's fingerprint, which must not cancel the hash.
  if (call.note.key != 0) mix(call.note.key * 0xd6e8feb86659fd93ULL);
  return hash;
}

uint64_t fingerprint(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

CallNote call_note(const std::string& text) {
  return {fingerprint(text) | 1, text.c_str()};  // 0 would mean no note
}

}  // namespace lockstep::inline v0
