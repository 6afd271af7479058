// The figures of `lockstep bench rpc`. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"
#include "lockstep/bench/rpc_work.h"

namespace lockstep::bench {

// One contender's turns at one thing.
struct RpcSeries {
  RpcTask task;
  std::string contender;
  std::vector<RpcTurn> rounds;
};

const char* unit_of(RpcWhat what);  // "us p50", "calls/s", "GB/s"

// The first series of each thing is what the others of it are compared with. A row's figures:
//   what, contender
//   operations    timed, in all rounds
//   unit          unit_of()
//   median        over the rounds, in that unit, of a call's median time, or of the calls or the
//                 bytes a second; low, high: the least and the greatest round
//   p99_us        of small, else 0: of a call's time, the median over the rounds
//   first_times   how many times as fast as this contender the first of the same thing is:
//                 put_ratios()
// Requires: equally many rounds, one at least, in all series of a thing.
std::vector<Row> make_rpc_rows(const std::vector<RpcSeries>& all);

std::string rpc_table(const std::vector<Row>& rows);
// A bar a row, on a scale of doublings, since contenders are hundreds of times apart: log2 of its
// time over the shortest of the same thing, which has no bar.
std::string rpc_svg(const std::vector<Row>& rows);

// From a list with commas: small, flight, tensor.
// Throws: InvalidArgument.
std::vector<RpcWhat> parse_rpc_whats(const std::string& text);

}  // namespace lockstep::bench
