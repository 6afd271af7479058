// Trace files: a rank's part of the flight recorder (call_board.h), as a file that outlives it;
// `lockstep doctor --trace` reads the files of all ranks.
//
// DIR/rank3.json is one JSON object: version, rank, world_size, local_rank, host, pid, reason,
// clock {entered_ticks, entered_unix_ns, now_ticks, now_unix_ns}, calls (oldest first) with the
// fields of CallRecord; fingerprints in hex, `ended` 0 while the rank is inside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0::trace {

// The contents of a rank's file.
struct LOCKSTEP_API TraceFile {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string host;
  uint32_t pid = 0;  // 0: it had not joined the job yet
  std::string reason;
  BoardClock entered;  // when the rank joined
  BoardClock now;      // when the file was written
  std::vector<CallRecord> calls;

  // This rank's ticks as time since the epoch; 0 when its clock cannot tell. Pure.
  int64_t unix_ns(uint64_t ticks) const;
};

// This host's clock, now.
LOCKSTEP_API BoardClock read_clock();
LOCKSTEP_API std::string host_name();  // of this host

// "rank3.json".
LOCKSTEP_API std::string trace_file_name(int rank);
// The board's current records of a rank. `local_rank` is also its place on the board.
LOCKSTEP_API TraceFile trace_of(const CallBoard& board, int local_rank, int rank, int world_size,
                                const std::string& reason);

// The text of a file.
LOCKSTEP_API std::string format_trace(const TraceFile& trace);
// Throws DataError that begins with `name` and describes the error.
LOCKSTEP_API TraceFile parse_trace(const std::string& text, const std::string& name);

// Writes the rank's file into `directory`, which is made if necessary. The file appears whole or
// not at all; a former one is replaced. Returns its path.
// Throws: SystemError.
LOCKSTEP_API std::filesystem::path write_trace(const std::filesystem::path& directory,
                                               const TraceFile& trace);
// Throws DataError that names the file and the error.
LOCKSTEP_API TraceFile read_trace(const std::filesystem::path& file);
// All rank files of `directory`, by rank.
// Throws: DataError, also when there is none.
LOCKSTEP_API std::vector<TraceFile> read_traces(const std::filesystem::path& directory);

}  // namespace lockstep::inline v0::trace
