// LL buffers: small collectives travel one cache line at a time; each line holds data and a flag
// word that says the data has arrived. It takes one transfer from core to core, without another
// flag or an answer. The idea is NCCL's LL protocol ("low latency"). All ranks write and all ranks
// read, so two sets of lines suffice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/engines/rounds/region.h"

namespace lockstep::inline v0::rounds {

// One rank's view of the region's LL buffers. Every rank takes part in every exchange, in the same
// order.
class LlBuffers {
 public:
  LlBuffers(Region region, int rank) : region_(region), rank_(rank) {}

  // Begins an exchange: shows this rank's `bytes` (at most kLineCapacity, perhaps 0). `key` is
  // equal on ranks that make the same call; with another rank's key the lines never become ready.
  // The previous exchange must be complete. Sleeping ranks must be woken (doorbell.h) after a later
  // sequentially consistent store.
  void write(uint64_t key, const std::byte* payload, int64_t bytes);
  // Whether the rank's first `bytes` have arrived; for 0, whether it takes part.
  bool ready(int rank, int64_t bytes) const;
  // The data that the rank wrote, contiguous: in the line itself if it fits into one, otherwise
  // copied to `scratch` (of that size). Valid until end().
  // Requires: ready().
  const std::byte* read(int rank, int64_t bytes, std::byte* scratch) const;
  // Ends the exchange.
  // Requires: all ranks were ready.
  void end();

 private:
  Region region_;
  int rank_;
  uint64_t exchange_ = 0;
  uint64_t flag_ = 0;
  int64_t written_[2] = {};  // lines, by parity
};

}  // namespace lockstep::inline v0::rounds
