#include "lockstep/trace/trace_writer.h"

#include <unistd.h>

#include <charconv>
#include <fstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::trace {

TraceWriter::TraceWriter(const std::map<std::string, std::string>& variables,
                         const EnvLookup& env) {
  const auto given = variables.find("LOCKSTEP_TRACE_DIR");
  directory_ =
      given != variables.end() ? given->second : env("LOCKSTEP_TRACE_DIR").value_or(std::string());
}

std::string TraceWriter::write(const CallBoard& board, int ranks, int first_rank, int world_size,
                               const std::string& reason) const {
  const std::string dir = directory_.string();
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      write_trace(directory_, trace_of(board, rank, first_rank + rank, world_size, reason));
    }
  } catch (const Error& error) {
    return "[lockstep] no traces written: " + std::string(error.what()) + "\n";
  }
  const std::string last = std::to_string(first_rank + ranks - 1);
  const std::string who = ranks == 1
                              ? "trace of rank " + last
                              : "traces of ranks " + std::to_string(first_rank) + " to " + last;
  return "[lockstep] " + who + " in " + dir + " (" + reason + "); see lockstep doctor --trace " +
         dir + "\n";
}

void write_own_trace(const std::filesystem::path& directory, const CallBoard& board, int local_rank,
                     int rank, int world_size, const std::string& reason) noexcept {
  try {
    TraceFile trace = trace_of(board, 0, rank, world_size, reason);
    trace.local_rank = local_rank;
    const std::string path = write_trace(directory, trace).string();
    write_all(STDERR_FILENO,
              "[lockstep] trace of rank " + std::to_string(rank) + ": " + path + "\n");
  } catch (const std::exception& error) {
    log_warning(std::string("no trace written: ") + error.what());
  }
}

bool survives_signal(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:") && !line.starts_with("SigIgn:")) continue;
    const auto digits = line.find_first_not_of(" \t", sizeof "SigCgt");
    uint64_t mask = 0;
    if (digits == std::string::npos) continue;
    std::from_chars(line.data() + digits, line.data() + line.size(), mask, 16);
    if (((mask >> (signal - 1)) & 1) != 0) return true;
  }
  return false;
}

}  // namespace lockstep::inline v0::trace
