// The figures of `lockstep bench rpc`. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"
#include "lockstep/bench/rpc_work.h"

namespace lockstep::inline v0::bench {

// The turns of one contender at one workload.
struct RpcSeries {
  RpcTask task;
  std::string contender;
  std::vector<RpcTurn> rounds;
};

const char* unit_of(RpcWorkload what);  // "us p50", "calls/s", "GB/s"

// Compares the series of each workload with its first one. A row's figures:
//   what, contender
//   operations    timed, in all rounds
//   unit          unit_of()
//   median        the median over the rounds of a call's median time, or of the calls or the
//                 bytes a second, in that unit; low, high: the least and the greatest round
//   p99_us        the median over the rounds of a call's 99th percentile; 0 but for small
//   first_times   the speed of the workload's first contender relative to this one: put_ratios()
// Requires: equally many rounds, one at least, in all series of a workload.
std::vector<Row> make_rpc_rows(const std::vector<RpcSeries>& all);

std::string rpc_table(const std::vector<Row>& rows);
// Draws a bar for each row on a scale of doublings, since contenders are hundreds of times apart:
// log2 of its time over the shortest of the same workload, which has no bar.
std::string rpc_svg(const std::vector<Row>& rows);

// Parses a list with commas: small, flight, tensor.
// Throws: InvalidArgument.
std::vector<RpcWorkload> parse_rpc_workloads(const std::string& text);

}  // namespace lockstep::inline v0::bench
