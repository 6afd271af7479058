// Pieces: who takes what from whom in a collective, as arithmetic. Shared by the protocols in which
// every rank offers one stretch of memory and its peers take their pieces of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/types.h"

namespace lockstep::rounds {

// A stretch of a rank's offer, and where it goes in the taker's output. Bytes.
struct Piece {
  int64_t from = 0;
  int64_t bytes = 0;
  int64_t to = 0;
};

// Bytes that belong to one rank.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes() const { return end - begin; }
};
// Of `bytes` that all ranks work on together; a cache line belongs to one rank.
Share share_of(int64_t bytes, int rank, int size);

// A collective as one rank sees it. all_to_all only where it is uniform: nobody knows all counts
// otherwise. The call must outlive the view.
class Pieces {
 public:
  Pieces(const Call& call, int rank, int size);

  const Call& call() const { return call_; }

  // Whether any rank offers its memory, at most how many bytes; equal on all ranks.
  static bool offered(const Call& call);
  int64_t largest_offer() const;

  // What `rank` offers: this many bytes, 0 if nothing.
  int64_t offer(int rank) const;
  // This rank's own offer; null if it is empty.
  const std::byte* own() const;
  // What this rank takes from `source`, itself included; nothing: 0 bytes. In a reduction every
  // source's piece is combined with the others'.
  Piece taken_from(int source) const;
  // What this rank gives to `taker`, in its own offer and in the taker's output.
  Piece given_to(int taker) const;
  // Whether `taker` takes anything from this rank.
  bool gives_to(int taker) const;

 private:
  Piece piece(int source, int taker) const;
  int64_t before(int rank) const;  // bytes of the parts of the ranks before it

  const Call& call_;
  int rank_;
  int size_;
  int64_t element_;
};

}  // namespace lockstep::rounds
