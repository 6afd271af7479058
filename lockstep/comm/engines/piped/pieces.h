// How a call on a device's memory runs in host memory: in pieces, each a call of its own for the
// host's engine, with the copies down before it and up after it. Pure. Not a public header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::piped {

inline bool is_message(const Call& call) {
  return call.op == Op::kSend || call.op == Op::kRecv;
}

// Bytes to copy between a place in the device's memory and one in the piece's host memory.
struct Span {
  std::byte* device = nullptr;
  int64_t host = 0;  // offset in the piece's memory
  int64_t bytes = 0;
};

struct Piece {
  // Its input and output are not set; they begin at the offsets `input` and `output` of the host
  // memory; -1: none.
  Call call;
  int64_t input = -1;
  int64_t output = -1;
  int64_t bytes = 0;  // size of the host memory
  std::vector<Span> down;
  std::vector<Span> up;
};

// Cuts collectives that offer more than `slot_bytes` into pieces of about that size, the same on
// all ranks; 0: cuts nothing. Messages and calls whose size only two ranks know stay whole. `call`
// is that of rank `rank` of `size`; the pieces have its sequence number.
std::vector<Piece> cut(const Call& call, int rank, int size, int64_t slot_bytes);

}  // namespace lockstep::inline v0::piped
