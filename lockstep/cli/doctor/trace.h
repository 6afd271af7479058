// The common meaning of the traces of a job's ranks: where they fell out of step, which ranks are
// behind, and which calls they were in. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::cli {

// A call, and the ranks that made it.
struct TracedCall {
  std::string call;  // "all_reduce sum float32 x 10 at train.cpp:34"
  std::vector<int> ranks;
};

// The calls that the ranks made under one sequence number; several when they differ.
struct TracedRow {
  uint64_t sequence = 0;
  std::vector<TracedCall> calls;  // the call of most ranks first
};

struct RankState {
  int rank = 0;
  uint64_t sequence = 0;  // its last collective's; 0: none yet
  uint64_t behind = 0;    // calls between it and the rank that is farthest
  bool inside = false;
  uint64_t in_sequence = 0;        // the number of `call`
  std::string call;                // the oldest that it is inside, or else its last; "": none
  std::optional<double> seconds;   // inside the call, or since it returned
  std::vector<std::string> moves;  // sends and receives that it is inside
};

// One communicator, with the ranks that are known to have used it.
struct GroupReport {
  uint32_t group = 0;
  std::vector<int> ranks;
  std::optional<TracedRow> divergence;       // the first call in which ranks differ
  std::optional<TracedRow> common;           // the last call before it that all made alike
  std::optional<TracedRow> different_lines;  // the first call that is alike, but from other lines
  std::vector<RankState> states;             // by rank
  std::vector<TracedRow> last;               // the last calls, oldest first
};

// A remote call that a rank waits for, or serves.
struct PendingRemote {
  int rank = 0;
  std::string call;  // "rpc 'pull' on 'ps'"
  double seconds = 0;
};

struct TraceReport {
  int world_size = 0;
  std::vector<int> ranks;           // ranks whose traces were used
  std::vector<int> missing;         // ranks without a trace
  std::vector<int> stale;           // ranks whose files are an earlier job's and are left out
  std::string reason;               // the reason why they were written
  int64_t unix_ns = 0;              // the latest time of writing
  std::vector<GroupReport> groups;  // in the order of their first calls
  // Pending remote calls, the oldest first. Calls younger than a second are not recorded.
  std::vector<PendingRemote> remote;
  std::vector<int> remote_cut;       // ranks with as many as can be recorded, and perhaps more
  std::vector<std::string> verdict;  // the faults and their remedies, a line each
  bool wrong = false;                // out of step, behind, or a trace is missing
};

// Throws: DataError when there is no trace.
TraceReport merge_traces(const std::vector<trace::TraceFile>& traces);

// Sentences wider than `columns` continue in the next line; tables do not.
std::string format_report(const TraceReport& report, size_t columns = SIZE_MAX);
nlohmann::ordered_json json_of(const TraceReport& report);

// "0", "0 and 2", "0 to 3 and 7".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace lockstep::inline v0::cli
