// Direct: collectives in which ranks take their pieces straight from their peers' memory:
// one-sided, with a single copy.
//
// There are two ways to access it: memory that is mapped here (a pointer for every rank: load and
// store), or copies to and from another address space (peer_memory.h: cross-memory attach). Nothing
// here waits or synchronises: the engine calls this once all peers have posted, and tells them when
// it is complete.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/rounds/peer_memory.h"
#include "lockstep/comm/engines/rounds/pieces.h"

namespace lockstep::inline v0::rounds {

// Puts this rank's pieces of the peers' offers into the call's output, combined in rank order where
// the call is a reduction. offers[r]: the data that rank r offers, null where it offers none.
void take_mapped(const Call& call, const Pieces& pieces, int rank,
                 std::span<const std::byte* const> offers);

// all_reduce in place: this rank combines its share of all buffers and stores the result into all
// of them, in one pass. Every element belongs to exactly one rank's share.
void all_reduce_mapped(const Call& call, int rank, std::span<std::byte* const> buffers);

// take_mapped() by copies. addresses[r]: the address of rank r's offer in its address space;
// `scratch` grows as needed.
void take_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> addresses, const PeerMemory& peer_memory,
                 std::vector<std::byte>& scratch);

// all_reduce_mapped() by copies, chunk by chunk. addresses[r]: the address of rank r's buffer in
// its address space.
void all_reduce_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                       const PeerMemory& peer_memory, std::vector<std::byte>& scratch);

// The reverse: this rank writes its pieces into the outputs of the ranks that need them.
// targets[r]: the address of rank r's output in its address space.
void push_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> targets, const PeerMemory& peer_memory);

// A broadcast in which the root works too: it writes the last of `size` equal shares into the
// outputs, and the other ranks take the other shares. addresses[root] or buffers[root] is its data;
// the other entries are the other ranks' outputs.
void broadcast_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                      std::span<const uint64_t> targets, const PeerMemory& peer_memory);
void broadcast_mapped(const Call& call, int rank, std::span<std::byte* const> buffers);

}  // namespace lockstep::inline v0::rounds
