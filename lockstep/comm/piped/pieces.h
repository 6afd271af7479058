// How a call on a device's memory is done in host memory: in pieces, each a call of its own for the
// host's engine, with what is copied down before it and up after it. Pure. Not a public header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep::piped {

inline bool is_message(const Call& call) {
  return call.op == Op::kSend || call.op == Op::kRecv;
}

// So many bytes from here in the device's memory to there in the piece's host memory, or back.
struct Span {
  std::byte* device = nullptr;
  int64_t host = 0;  // from the beginning of the piece's memory
  int64_t bytes = 0;
};

struct Piece {
  // Its input and output are not set: they begin at `input` and `output` of the host memory; -1:
  // there is none.
  Call call;
  int64_t input = -1;
  int64_t output = -1;
  int64_t bytes = 0;  // of host memory
  std::vector<Span> down;
  std::vector<Span> up;
};

// Collectives that offer more than `slot_bytes` are cut into pieces of about so many bytes, the
// same on all ranks; 0: nothing is cut. Messages are not, nor what only two ranks know the size of.
// `call` is of rank `rank` of `size`; the pieces have its sequence number.
std::vector<Piece> cut(const Call& call, int rank, int size, int64_t slot_bytes);

}  // namespace lockstep::piped
