// Frames: the layout of a message in the stream of a link. Pure. Not a public header.
//
// A frame is a head of kHeadBytes, the body, a table of the tensors (TensorPlace, one after
// another), and the bytes of the tensors that are not named by their address, one after another.
// Words are little-endian.
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

namespace lockstep::inline v0::rpc::internal {

static_assert(std::endian::native == std::endian::little);

// The received bytes are no frame, or exceed a bound; the link is unusable.
class BadFrame : public Error {
 public:
  using Error::Error;
};

// Kinds of the links themselves, which their users do not see.
inline constexpr auto kHello = static_cast<MessageKind>(128);  // body: the end's identity (hello.h)
// Body: whether it reads the other's memory, and where the other's word is (hello.h).
inline constexpr auto kReady = static_cast<MessageKind>(129);

struct FrameHead {
  static constexpr uint32_t kMagic = 0x3452534c;  // "LSR4"
  uint32_t magic = kMagic;
  MessageKind kind = MessageKind::kRequest;
  uint8_t references = 0;  // 1: the message has references, and its receiver acknowledges it
  uint8_t zeros[2] = {};
  uint64_t call = 0;
  uint64_t ticket = 0;  // for the tensors that are named by their address; 0: there are none
  uint32_t body = 0;    // bytes
  uint32_t table = 0;   // bytes
  uint32_t tensors = 0;
  uint32_t zero = 0;
};
inline constexpr size_t kHeadBytes = 40;
static_assert(sizeof(FrameHead) == kHeadBytes);

// A tensor's row in the table.
struct TensorPlace {
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::SmallVector<int64_t, 5> sizes;
  uint64_t bytes = 0;              // of all its elements; not in the table
  uint64_t address = 0;            // in the sender's memory; 0: it follows in the stream
  c10::Device device = c10::kCPU;  // its destination, which may not exist
};
inline constexpr size_t kMostDims = 64;
inline constexpr size_t kMostTable = size_t{32} << 20;

// Whether tensors of this dtype can be sent: all whose elements are self-contained bytes; quantized
// ones are not.
bool travels(at::ScalarType dtype);

// Appends a row of the table. `sizes` has at most kMostDims.
void append_row(std::string& table, at::ScalarType dtype, at::IntArrayRef sizes, uint64_t address,
                c10::Device device = c10::kCPU);

// Reads kHeadBytes bytes. Throws BadFrame, also where a length exceeds its bound.
FrameHead read_head(const char* bytes);
// Reads all rows; overwrites `places`. Throws BadFrame if they differ from the head, if the product
// of sizes overflows, or if all tensors together are larger than `most_bytes`.
void read_table(std::string_view table, const FrameHead& head, uint64_t most_bytes,
                std::vector<TensorPlace>& places);

}  // namespace lockstep::inline v0::rpc::internal
