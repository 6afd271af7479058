// The current calls of a running job's ranks, and the rank that the others wait for, from the
// records of their calls. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::cli {

struct LiveRow {
  int rank = 0;
  uint32_t pid = 0;
  uint64_t calls = 0;             // collectives so far on the communicator that it used last
  std::string state;              // "inside", "returned", "in init()"
  std::optional<double> seconds;  // inside the call, or since it returned
  std::string call;
  // The fraction of the observed time in which all others stood in a call that this rank alone had
  // not made.
  double awaited = 0;
  double late = 0;  // seconds: the median over the calls to which it came noticeably last
};

struct LiveReport {
  std::vector<LiveRow> rows;  // by rank
  double seconds = 0;         // observed time
  int world_size = 0;
  // The rank that the others wait for, and the seconds since when it has always been that rank. Set
  // where a fifth of the time is spent on it, and twice as much as on any other rank.
  std::optional<int> straggler;
  double since = 0;
};

// Examines the last `seconds` of the records.
// Requires: ranks of one host, whose clocks are the same, and records that were read at the same
// time.
LiveReport look_live(const std::vector<trace::TraceFile>& ranks, double seconds);

std::string format_live(const LiveReport& report);

}  // namespace lockstep::inline v0::cli
