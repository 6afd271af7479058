// Which tokens each of several ranks has, where the sequences of a batch are divided among them, and which of
// them look at which: as numbers, without tensors and ranks.
//
// A sequence of `length` tokens is cut into 2 * parts chunks, end to end, whose lengths differ by one at most (a
// short sequence has empty ones). Part r has chunks r and 2 * parts - 1 - r: an early one, whose tokens see little,
// and a late one, whose tokens see much, so that causal attention is as much work on every part. This is the
// zig-zag of Megatron-LM's context parallelism and of zhuzilin's ring-flash-attention; Brandon et al.
// (arXiv:2311.09431) balance likewise by stripes.
//
//   context_rows({8, 3}, 0, 2)       // of 11 rows: 0 1 6 7, 10
//   context_block(8, 1, 0, 2)        // part 1's 4 queries see the first 2 of part 0's keys, without a mask
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How rows attend to others' (context_attention.h): keys and values go round, or heads are exchanged for rows.
enum class ContextWay : uint8_t { kRing, kHeads };
LOCKSTEP_API const char* to_string(ContextWay way);  // "ring"

// A chunk of a sequence: positions [begin, end).
struct ContextChunk {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }  // tokens
  bool operator==(const ContextChunk&) const = default;
};
// Chunk 0 .. 2 * parts - 1. Throws InvalidArgument: a length below 0, a chunk or a part that is none.
LOCKSTEP_API ContextChunk context_chunk(int64_t length, int64_t chunk, int64_t parts);

// How many tokens of a sequence the part has.
LOCKSTEP_API int64_t context_count(int64_t length, int64_t part, int64_t parts);
// The same of all sequences of a batch together.
LOCKSTEP_API int64_t context_count(const std::vector<int64_t>& lengths, int64_t part,
                                   int64_t parts);

// The rows of a batch of sequences, end to end, that the part has: ascending, hence sequence by
// sequence. The parts' rows cover the batch, each row once.
LOCKSTEP_API std::vector<int64_t> context_rows(const std::vector<int64_t>& lengths, int64_t part,
                                               int64_t parts);

// Sequences of one length that lie side by side.
struct ContextRun {
  int64_t sequences = 0;
  int64_t length = 0;

  bool operator==(const ContextRun&) const = default;
};
// The runs of a batch, in order.
LOCKSTEP_API std::vector<ContextRun> context_runs(const std::vector<int64_t>& lengths);

// The rows of one part that look at rows of another part (or of the same), in one sequence: queries
// [query_begin, query_begin + queries) of the one at keys [key_begin, key_begin + keys) of the other, counted among
// the rows that each has of the sequence. Every query looks at all of the keys or, if causal, at those up to its own
// number. Every pair of a token and one that it sees is in one block of all parts, and no other pair is.
struct ContextBlock {
  int64_t query_begin = 0;
  int64_t queries = 0;
  int64_t key_begin = 0;
  int64_t keys = 0;
  bool causal = false;

  bool empty() const { return queries == 0 || keys == 0; }  // no pair of tokens is in it
  bool operator==(const ContextBlock&) const = default;
};
// Which rows of part `part` look at which rows of part `of_part`.
LOCKSTEP_API ContextBlock context_block(int64_t length, int64_t part, int64_t of_part,
                                        int64_t parts);

}  // namespace lockstep::inline v0
