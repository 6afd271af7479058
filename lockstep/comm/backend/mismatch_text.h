// The error texts for ranks that called different operations, the same on every backend.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0 {

// "#7 all_reduce sum float32 x 100 at train.cpp:12".
std::string numbered(const trace::CallRecord& record);

// The call of one rank.
struct RankCall {
  int rank = 0;
  uint64_t sequence = 0;
  std::string text;                          // describe(call)
  std::optional<uint64_t> fingerprint = {};  // decides equality in place of number and text
};

// "ranks called different collectives: ranks 0, 2: #2 all_reduce ...; rank 1: #2 all_gather ...;
// every rank must call the same operations in the same order". `calls` are in rank order; ranks
// with the same call are named together. `noticed_at`: the call at which an earlier difference was
// noticed, or "". Pure.
std::string mismatch_text(std::span<const RankCall> calls, const std::string& noticed_at = {});

// The same where the ranks no longer know the first different call: it is more than `calls` before
// the one at which it was noticed. Pure.
std::string mismatch_text_before(uint64_t calls, const std::string& noticed_at);

}  // namespace lockstep::inline v0
