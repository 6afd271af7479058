// Frames: how a message lies in the stream of a link. Pure. Not a public header.
//
// A frame is a head of kHeadBytes, the body, a table of the tensors (TensorPlace, one after the other), and the bytes of
// those tensors that are not named by their address, one after the other. Words are little-endian.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/message.h"

namespace lockstep::rpc::internal {

static_assert(std::endian::native == std::endian::little);

// What came is no frame, or beyond what is allowed; the link is of no use any more.
class BadFrame : public Error {
 public:
  using Error::Error;
};

// Of links themselves; not seen by who uses them.
inline constexpr auto kHello = static_cast<MessageKind>(128);  // body: who this is (hello.h)
inline constexpr auto kReady = static_cast<MessageKind>(
    129);  // body: whether it reads the other's memory, where the other's word is (hello.h)

struct FrameHead {
  static constexpr uint32_t kMagic = 0x3352534c;  // "LSR3"
  uint32_t magic = kMagic;
  MessageKind kind = MessageKind::kRequest;
  uint8_t zeros[3] = {};
  uint64_t call = 0;
  uint64_t ticket = 0;  // of the tensors that are named by their address; 0: there are none
  uint32_t body = 0;    // bytes
  uint32_t table = 0;   // bytes
  uint32_t tensors = 0;
  uint32_t zero = 0;
};
inline constexpr size_t kHeadBytes = 40;
static_assert(sizeof(FrameHead) == kHeadBytes);

// A tensor as the table has it.
struct TensorPlace {
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::SmallVector<int64_t, 5> sizes;
  uint64_t bytes = 0;              // of all its elements; not in the table
  uint64_t address = 0;            // in the sender's memory; 0: it follows in the stream
  c10::Device device = c10::kCPU;  // where it shall go; perhaps there is none of this number
};
inline constexpr size_t kMostDims = 64;
inline constexpr size_t kMostTable = size_t{32} << 20;

// The dtypes that travel: all whose elements are bytes that mean something by themselves; quantized ones do not.
bool travels(at::ScalarType dtype);

// Appends a row of the table. `sizes` has at most kMostDims.
void append_row(std::string& table, at::ScalarType dtype, at::IntArrayRef sizes, uint64_t address,
                c10::Device device = c10::kCPU);

// From kHeadBytes bytes. Throws BadFrame, also where a length is beyond its bound.
FrameHead read_head(const char* bytes);
// All rows; `places` is overwritten. Throws BadFrame: not as the head says, sizes whose product does not fit, all tensors
// together larger than `most_bytes`.
void read_table(std::string_view table, const FrameHead& head, uint64_t most_bytes,
                std::vector<TensorPlace>& places);

}  // namespace lockstep::rpc::internal
