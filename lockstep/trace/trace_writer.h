// TraceWriter: the agent's part of the flight recorder. It writes its ranks' traces when the job
// fails, when a signal stops it, and on SIGUSR1 and SIGUSR2; also those of killed ranks, which
// could not write them.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::trace {

class TraceWriter {
 public:
  // Writes to LOCKSTEP_TRACE_DIR, from `variables` or otherwise from `env`; off when neither has
  // it.
  TraceWriter(const std::map<std::string, std::string>& variables, const EnvLookup& env);

  bool on() const { return !directory_.empty(); }
  // Writes the records of the first `ranks` on the board, whose numbers in the job begin with
  // `first_rank`. Returns a line, with its end, that says where they are, or why they could not be
  // written.
  std::string write(const CallBoard& board, int ranks, int first_rank, int world_size,
                    const std::string& reason) const;

 private:
  std::filesystem::path directory_;
};

// For a rank without an agent: writes its own trace, from place 0 of its board. Reports on stderr
// where it is, or why not.
void write_own_trace(const std::filesystem::path& directory, const CallBoard& board, int local_rank,
                     int rank, int world_size, const std::string& reason) noexcept;

// Whether the process handles or ignores the signal, as far as /proc tells; otherwise it would die
// of it.
bool survives_signal(pid_t pid, int signal);

}  // namespace lockstep::inline v0::trace
