// Direct: collectives in which ranks take their pieces straight from their peers' memory: single
// copy, one-sided.
//
// Two ways to get there: memory that is mapped here (a pointer for every rank: load and store), or
// copies in and out of another address space (reach.h: cross-memory attach). Nothing here waits or
// synchronises: the engine calls this once all peers have posted, and tells them when it is over.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/rounds/pieces.h"
#include "lockstep/comm/rounds/reach.h"
#include "lockstep/comm/types.h"

namespace lockstep::rounds {

// Puts this rank's pieces of the peers' offers into the call's output, combined in rank order where
// the call is a reduction. offers[r]: what rank r offers, null where that is nothing.
void take_mapped(const Call& call, const Pieces& pieces, int rank,
                 std::span<const std::byte* const> offers);

// all_reduce in place: this rank combines its share of all buffers and stores the result into all
// of them, in one pass. Every element belongs to one rank's share.
void all_reduce_mapped(const Call& call, int rank, std::span<std::byte* const> buffers);

// take_mapped() by copies. addresses[r]: of rank r's offer in its address space; `scratch` is grown
// as needed.
void take_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> addresses, const Reach& reach,
                 std::vector<std::byte>& scratch);

// The other way round: this rank puts what it gives into the outputs of those who take it.
// targets[r]: of rank r's output in its address space.
void push_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> targets, const Reach& reach);

// A broadcast in which the root does not look on: it puts the last of `size` equal shares into the
// outputs, and everybody takes the others. addresses[root] or buffers[root]: its data; the others':
// their outputs.
void broadcast_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                      std::span<const uint64_t> targets, const Reach& reach);
void broadcast_mapped(const Call& call, int rank, std::span<std::byte* const> buffers);

}  // namespace lockstep::rounds
