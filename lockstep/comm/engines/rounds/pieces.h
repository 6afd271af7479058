// Pieces: which rank takes which bytes from which other rank in a collective, as arithmetic. The
// protocols share it in which every rank offers one stretch of memory and its peers take their
// pieces of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::rounds {

// A stretch of a rank's offer, and its place in the taker's output, in bytes.
struct Piece {
  int64_t from = 0;
  int64_t bytes = 0;
  int64_t to = 0;
};

// The bytes that belong to one rank.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes() const { return end - begin; }
};
// A rank's share of `bytes` that all ranks work on together; each cache line belongs to one rank.
Share share_of(int64_t bytes, int rank, int size);

// A collective as one rank sees it. It covers only uniform all_to_all calls, since no rank knows
// all counts of the others. The call must outlive the view.
class Pieces {
 public:
  Pieces(const Call& call, int rank, int size);

  const Call& call() const { return call_; }

  // Whether any rank offers its memory, and an upper bound of the bytes; equal on all ranks.
  static bool offered(const Call& call);
  int64_t largest_offer() const;

  // The number of bytes that `rank` offers, 0 if none.
  int64_t offer(int rank) const;
  // This rank's own offer; null if it is empty.
  const std::byte* own() const;
  // The piece that this rank takes from `source`, itself included; 0 bytes if none. In a reduction
  // every source's piece is combined with the others'.
  Piece taken_from(int source) const;
  // The piece that this rank gives to `taker`, in its own offer and in the taker's output.
  Piece given_to(int taker) const;
  // Whether `taker` takes anything from this rank.
  bool gives_to(int taker) const;

 private:
  Piece piece(int source, int taker) const;
  int64_t before(int rank) const;  // the bytes of the parts of lower ranks

  const Call& call_;
  int rank_;
  int size_;
  int64_t element_;
};

}  // namespace lockstep::inline v0::rounds
