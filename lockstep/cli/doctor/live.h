// What the ranks of a running job do now, and for whom the others wait, from the records of their
// calls. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/trace/trace_file.h"

namespace lockstep::cli {

struct LiveRow {
  int rank = 0;
  uint32_t pid = 0;
  uint64_t calls = 0;             // collectives so far, of the communicator that it used last
  std::string state;              // "inside", "returned", "in init()"
  std::optional<double> seconds;  // inside, or since it returned
  std::string call;
  // Of the time that was looked at: how much of it all others stood in a call that this rank alone
  // had not made.
  double awaited = 0;
  double late = 0;  // seconds, the median over the calls that it came to last, and noticeably
};

struct LiveReport {
  std::vector<LiveRow> rows;  // by rank
  double seconds = 0;         // that were looked at
  int world_size = 0;
  // The one that the others wait for, and since how many seconds it has been always that one: where
  // a fifth of the time goes into it, and twice as much as into any other rank.
  std::optional<int> straggler;
  double since = 0;
};

// Of ranks of one host, whose clocks are one; all of them read at the same time. Looks at the last
// `seconds`.
LiveReport look_live(const std::vector<trace::TraceFile>& ranks, double seconds);

std::string format_live(const LiveReport& report);

}  // namespace lockstep::cli
