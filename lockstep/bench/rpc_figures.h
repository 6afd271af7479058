// The figures of `lockstep bench rpc`. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/bench/rpc_work.h"

namespace lockstep::bench {

// One contender's turns at one thing.
struct RpcSeries {
  RpcTask task;
  std::string contender;
  std::vector<RpcTurn> rounds;
};

struct RpcRow {
  RpcWhat what = RpcWhat::kSmall;
  std::string contender;
  int64_t operations = 0;  // timed, in all rounds
  // Of a round, as what_unit() says: small: the median time of a call in microseconds; flight: calls a second; tensor:
  // 1e9 bytes a second. The median over the rounds, the least and the greatest round.
  double value = 0, low = 0, high = 0;
  double p99_us = 0;  // small only: the 99th percentile of a call's time, median over the rounds
  // How many times as fast as this contender the first of the same thing is, round by round: its median and range.
  double first_times = 1, first_times_low = 1, first_times_high = 1;
};

const char* unit_of(RpcWhat what);  // "us p50", "calls/s", "GB/s"

// The first series of each thing is what the others of it are compared with. Requires equally many rounds, one at least,
// in all series of a thing.
std::vector<RpcRow> make_rpc_rows(const std::vector<RpcSeries>& all);

std::string rpc_table(const std::vector<RpcRow>& rows);
// A bar a row, on a scale of doublings, since contenders are hundreds of times apart: log2 of its time over the shortest
// of the same thing, which has no bar.
std::string rpc_svg(const std::vector<RpcRow>& rows);
nlohmann::ordered_json rpc_json(const std::vector<RpcRow>& rows);

// From a list with commas: small, flight, tensor. Throws InvalidArgument.
std::vector<RpcWhat> parse_rpc_whats(const std::string& text);

}  // namespace lockstep::bench
