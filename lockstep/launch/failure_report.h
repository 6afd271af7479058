// The texts about the rank that failed first. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/worker_failure.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::launch {

// "SIGKILL" for 9; "signal 40" for those without a name.
std::string signal_name(int signal);

// "1 host", "2 hosts".
std::string count_of(int n, const std::string& what);
// "8 s", "1.5 s".
std::string seconds_text(std::chrono::milliseconds time);

// "#17 barrier at train.cpp:9 (had returned)", "none yet; it is in init(): connecting over tcp"; ""
// when the rank had not reached init().
std::string describe_call(const trace::BoardRecord& record);

// "killed by SIGKILL" or "exited with code 3".
std::string describe_end(const WorkerFailure& failure);
std::string describe_end(const ExitStatus& status);

// The cause of the job's end, or the first failure: "rank 1 is stopped (SIGSTOP)", "rank 3 killed
// by SIGSEGV". For a line about it.
std::string describe_cause(const WorkerFailure& failure);

// The report that ends a failed run: rank, pid, signal or exit code, last collective, tail of the
// log.
LOCKSTEP_API std::string format_failure(const WorkerFailure& failure, int world_size);

// The number of a restart that does not count, since the rank only waited for a stopped one.
inline constexpr int kUncounted = -1;
// "[lockstep] rank 0 (ps 0) killed by SIGSEGV, pid 42; it is started again, 1 of 3": for a rank
// that ended and its `number`-th of `most` restarts; 0: for none, since the job ends.
std::string restart_line(int rank, const std::string& role, const ExitStatus& status, int pid,
                         int number, int most);
// The same for a rank of which nothing is waited for any more (RankExit::done).
std::string done_line(int rank, const std::string& role, const ExitStatus& status, int pid);
// The same for a rank that is not replaced: "...; the others go on without it".
std::string left_behind_line(int rank, const std::string& role, const ExitStatus& status, int pid);

// "[lockstep] rank 0 (ps 0) lost its device cuda:1: CUDA error: ...": for a rank that ended for
// that reason.
std::string failed_device_line(int rank, const std::string& role, const std::string& device,
                               const std::string& what);

// "[lockstep] rank 0 (ps 0) stands still (SIGSTOP), pid 42, and others gave up waiting for it: it
// is killed".
std::string still_rank_line(int rank, const std::string& role, const std::string& by, int pid,
                            const std::string& what);

// "the agent stood still ... for longer than the 8 s after which ...": for an agent of several
// hosts whose ranks were ended meanwhile.
std::string agent_stood_still_text(std::chrono::milliseconds silence);

// "[lockstep] /logs/stderr.log cannot be written: No space left on device; ...": for output of the
// ranks that is lost.
std::string lost_output_line(const std::filesystem::path& file, int error);
// The number of lost bytes at the end, and whether that changes the exit code.
std::string lost_bytes_line(uint64_t bytes, bool allowed);

// "[lockstep] rank 0 (ps 0) is pid 43 from now on, which was a spare".
std::string spare_taken_line(int rank, const std::string& role, int pid);

// The end of a spare (spares.h) before a rank needed it.
struct SpareEnd {
  ExitStatus status;
  int pid = 0;
  bool waited = false;         // for a rank; otherwise it had not reached init()
  std::string last_line = {};  // the last line that it wrote; "": none
  bool is_last = false;        // no more spares are kept
};
// "[lockstep] a spare exited with code 1, pid 42, and had not come to init(); its last line: no
// such file; ...".
std::string spare_lost_line(const SpareEnd& end);
std::string spare_not_started_line(const std::string& why, bool is_last);

}  // namespace lockstep::inline v0::launch
