// Schedule: the steps of one rank for a collective, as data. Pure: made from the call's numbers
// alone, carried out by Exchange.
//
// Reductions add in rank order, ((a0 + a1) + a2) + ..., for every size and number of ranks, so that
// the thresholds below change the time and never a bit. This rules out rings and recursive halving
// for the additions, where partial sums travel. Instead every rank owns a part of the elements: the
// others send it their values of that part directly, and the owner adds all of them at once. A rank
// sends (N-1)/N of the buffer for that, as in a ring reduce_scatter, in one step instead of N-1.
// The finished parts then travel around a ring, where every link carries each byte once.
//
//   all_reduce      small: every rank sends all to every other (above 8 ranks: Bruck's all_gather)
//                   and adds; else reduce_scatter and ring all_gather, block by block
//   reduce          small: all to the root, which adds; else reduce_scatter, and the owners send to
//                   the root
//   reduce_scatter  directly to the owners
//   broadcast       small: binomial tree; else a chain, piece after piece
//   all_gather      small: directly; else a ring
//   gather, scatter, all_to_all: directly
//   barrier         dissemination, ceil(log2 N) rounds
//
// Large buffers go in blocks of kBlockBytes, two of which are in progress at a time: this bounds
// the scratch memory to 2 * kBlockBytes * (N-1)/N.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::tcp {

enum class Place : uint8_t { kInput, kOutput, kScratch };

struct Piece {
  Place place = Place::kInput;
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
};

struct Step {
  enum class Kind : uint8_t { kSend, kReceive, kReduce, kCopy };
  Kind kind = Kind::kCopy;
  int peer = -1;            // for kSend, kReceive
  Piece piece;              // kSend: from; the others: to
  std::vector<Piece> from;  // kReduce: one a rank, in rank order; kCopy: one
};

// The k-th send to a peer meets its k-th receive from this rank; sends to one peer leave in the
// order of their steps. A step may run once all steps before it in `edges` are done. Receives
// depend on no step: the sender knows that the memory is free.
struct Schedule {
  std::vector<Step> steps;
  std::vector<std::pair<int32_t, int32_t>> edges;  // (earlier step, later step)
  int64_t scratch_bytes = 0;
};

// The sizes at which the shape of a schedule changes; the same on all ranks. Tests make them small.
struct ScheduleSizes {
  int64_t small_bytes = 32 * 1024;  // bytes that a rank may send for a one-step algorithm
  int64_t piece_bytes = 256 * 1024;
  int64_t block_bytes = 8 << 20;
};

// For `rank` of `size`; the call's counts have `size` entries where it has counts.
Schedule make_schedule(const Call& call, int rank, int size, const ScheduleSizes& sizes = {});

}  // namespace lockstep::inline v0::tcp
