// What the traces of a job's ranks say together: where they fell out of step, who is behind, who
// was inside what. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/trace/trace_file.h"

namespace lockstep::cli {

// A call, and the ranks that made it.
struct TracedCall {
  std::string call;  // "all_reduce sum float32 x 10 at train.cpp:34"
  std::vector<int> ranks;
};

// The calls that the ranks made under one sequence number; several when they differ.
struct TracedRow {
  uint64_t sequence = 0;
  std::vector<TracedCall> calls;  // that of most ranks first
};

struct RankState {
  int rank = 0;
  uint64_t sequence = 0;  // of its last collective; 0: none yet
  uint64_t behind = 0;    // by so many calls behind the rank that is farthest
  bool inside = false;
  uint64_t in_sequence = 0;        // of `call`: the oldest that it is inside of, or else the last
  std::string call;                // that one; "" when there is none
  std::optional<double> seconds;   // inside, or since it returned
  std::vector<std::string> moves;  // sends and receives that it is inside of
};

// One communicator. Only ranks that used it are known to be in it.
struct GroupReport {
  uint32_t group = 0;
  std::vector<int> ranks;
  std::optional<TracedRow> divergence;       // the first call in which ranks differ
  std::optional<TracedRow> common;           // the last one before it that all made alike
  std::optional<TracedRow> different_lines;  // the first one that is alike, but from other lines
  std::vector<RankState> states;             // by rank
  std::vector<TracedRow> last;               // the last calls, oldest first
};

// A call of rpc that a rank waits for, or serves.
struct PendingRemote {
  int rank = 0;
  std::string call;  // "rpc 'pull' on 'ps'"
  double seconds = 0;
};

struct TraceReport {
  int world_size = 0;
  std::vector<int> ranks;           // whose traces were used
  std::vector<int> missing;         // that have none
  std::vector<int> stale;           // whose files are of an earlier job; left out
  std::string reason;               // why they were written
  int64_t unix_ns = 0;              // when, the latest
  std::vector<GroupReport> groups;  // in the order of their first calls
  std::vector<PendingRemote>
      remote;  // pending, the oldest first; those younger than a second are not recorded
  std::vector<int> remote_cut;  // of which ranks these may not be all: the most that are recorded
  std::vector<std::string> verdict;  // what is wrong and what to do, a line each
  bool wrong = false;                // out of step, behind, or a trace is missing
};

// Throws: DataError when there is no trace.
TraceReport merge_traces(const std::vector<trace::TraceFile>& traces);

// Sentences that are wider than `columns` go on in the next line; tables do not.
std::string format_report(const TraceReport& report, size_t columns = SIZE_MAX);
nlohmann::ordered_json json_of(const TraceReport& report);

// "0", "0 and 2", "0 to 3 and 7".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace lockstep::cli
