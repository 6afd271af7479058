// Lines: small collectives, one cache line at a time, each with its data and the word that says it
// is there: one transfer from core to core, no other flag and no answer. The idea is NCCL's LL
// protocol ("low latency"); all ranks write and all ranks read, so that two sets of lines suffice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/rounds/region.h"

namespace lockstep::rounds {

// One rank's view of the region's lines. Every rank takes part in every exchange, in the same
// order.
class Lines {
 public:
  Lines(Region region, int rank) : region_(region), rank_(rank) {}

  // Begins an exchange: shows this rank's `bytes` (at most kLineCapacity, perhaps 0). `key` is
  // equal on ranks that make the same call: the lines of another one never become ready. The
  // exchange before must be over. Whoever may sleep must be woken (doorbell.h) after a later store
  // that is sequentially consistent.
  void write(uint64_t key, const std::byte* payload, int64_t bytes);
  // Whether the rank's first `bytes` are there; for 0, whether it takes part.
  bool ready(int rank, int64_t bytes) const;
  // What the rank wrote, contiguous: in the line itself if it fits into one, else copied to
  // `scratch` (as many bytes). Valid until end(). Only once ready().
  const std::byte* read(int rank, int64_t bytes, std::byte* scratch) const;
  // Ends the exchange. Only once all ranks were ready.
  void end();

 private:
  Region region_;
  int rank_;
  uint64_t exchange_ = 0;
  uint64_t flag_ = 0;
  int64_t written_[2] = {};  // lines, by parity
};

}  // namespace lockstep::rounds
