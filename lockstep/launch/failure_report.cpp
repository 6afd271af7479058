#include "lockstep/launch/failure_report.h"

#include <signal.h>
#include <string.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::launch {
namespace {

// Indents the lines after the first one.
std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out;
}

std::string on_host(const std::string& host) {
  return host.empty() ? "" : " on " + host;
}

// The state of a rank that is the cause, or its end.
std::string state_of(const RankSight& cause) {
  if (!cause.stopped_by.empty()) return "is stopped (" + cause.stopped_by + ")";
  if (cause.end.empty()) return "did not come; its process runs";
  return cause.end + (cause.ended_badly ? "" : ", although others still waited for it");
}

// "rank 1 of 3 is stopped (SIGSTOP), pid 42".
std::string cause_line(const RankSight& cause, const std::string& of) {
  return "rank " + std::to_string(cause.rank) + of + on_host(cause.host) + " " + state_of(cause) +
         ", pid " + std::to_string(cause.pid);
}

std::string last_collective_line(const std::string& call, const std::string& of = "") {
  return call.empty() ? "" : "  last collective" + of + ": " + call + "\n";
}

// " (ps 0, after 2 restarts)".
std::string role_part(const WorkerFailure& failure) {
  if (failure.role.empty()) return "";
  std::string text = " (" + failure.role;
  if (failure.restarts > 0)
    text += ", after " + std::to_string(failure.restarts) +
            (failure.restarts == 1 ? " restart" : " restarts");
  return text + ")";
}

// "rank 0", "ranks 0, 2".
std::string names_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + joined(ranks);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string count_of(int n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string seconds_text(std::chrono::milliseconds time) {
  std::string text = std::to_string(time.count() / 1000);
  if (time.count() % 1000 != 0) text += "." + std::to_string(time.count() % 1000 / 100);
  return text + " s";
}

std::string describe_end(const ExitStatus& status) {
  if (status.signal == 0) return "exited with code " + std::to_string(status.exit_code);
  std::string text = "killed by " + signal_name(status.signal);
  if (status.signal == SIGKILL)
    text += " (by the kernel for lack of memory, unless a user sent it)";
  return text;
}

std::string describe_end(const WorkerFailure& failure) {
  return describe_end(ExitStatus{failure.exit_code, failure.signal});
}

std::string describe_call(const trace::BoardRecord& record) {
  if (record.pid == 0) return "";
  std::string text = "none yet";
  if (record.sequence != 0)
    text = "#" + std::to_string(record.sequence) + " " + record.call +
           (record.state == 1 ? " (still inside)" : " (had returned)");
  if (!record.step.empty()) text += "; it is in init(): " + record.step;
  return text;
}

std::string describe_cause(const WorkerFailure& failure) {
  if (!failure.gave_up || failure.causes.empty())
    return "rank " + std::to_string(failure.rank) + on_host(failure.host) + " " +
           describe_end(failure);
  const RankSight& cause = failure.causes.front();
  return "rank " + std::to_string(cause.rank) + on_host(cause.host) + " " + state_of(cause);
}

namespace {

std::string end_line(int rank, const std::string& role, const ExitStatus& status, int pid) {
  return "[lockstep] rank " + std::to_string(rank) + (role.empty() ? " " : " (" + role + ") ") +
         describe_end(status) + ", pid " + std::to_string(pid) + "; ";
}

}  // namespace

std::string left_behind_line(int rank, const std::string& role, const ExitStatus& status, int pid) {
  return end_line(rank, role, status, pid) + "the others go on without it\n";
}

std::string done_line(int rank, const std::string& role, const ExitStatus& status, int pid) {
  return end_line(rank, role, status, pid) +
         "all ranks had done their steps, so it is not started again; what it was still to do is "
         "not done\n";
}

std::string restart_line(int rank, const std::string& role, const ExitStatus& status, int pid,
                         int number, int most) {
  const std::string line = end_line(rank, role, status, pid);
  if (number == 0) return line + "it is not started again, since the job ends\n";
  if (number == kUncounted)
    return line + "it is started again, uncounted, since it only waited for one that stood still\n";
  return line + "it is started again, " + std::to_string(number) + " of " + std::to_string(most) +
         "\n";
}

std::string failed_device_line(int rank, const std::string& role, const std::string& device,
                               const std::string& what) {
  return "[lockstep] rank " + std::to_string(rank) + (role.empty() ? "" : " (" + role + ")") +
         " lost its device " + device + ": " + what +
         "; if it is started again, it takes a device of this host that no rank has, where there "
         "is one\n";
}

std::string still_rank_line(int rank, const std::string& role, const std::string& by, int pid,
                            const std::string& what) {
  return "[lockstep] rank " + std::to_string(rank) + (role.empty() ? "" : " (" + role + ")") +
         " stands still (" + by + "), pid " + std::to_string(pid) + ", and " + what + "\n";
}

std::string agent_stood_still_text(std::chrono::milliseconds silence) {
  return "the agent stood still (SIGSTOP, or its host slept) for longer than the " +
         seconds_text(silence) +
         " after which those of other hosts go on without it, so its ranks were ended";
}

std::string lost_output_line(const std::filesystem::path& file, int error) {
  return std::string("[lockstep] ") +
         system_error(file.string() + " cannot be written", error).what() +
         "; what the ranks write is lost until there is room\n";
}

std::string lost_bytes_line(uint64_t bytes, bool allowed) {
  return "[lockstep] " + std::to_string(bytes) +
         " bytes of the ranks' output are missing from the log files" +
         (allowed ? "\n" : "; give --log-dir more room, or --allow-lost-logs\n");
}

namespace {

std::string spares_go_on(bool is_last) {
  return is_last
             ? "no more spares are kept after so many in a row: a rank that dies is started anew\n"
             : "another one is started\n";
}

}  // namespace

std::string spare_taken_line(int rank, const std::string& role, int pid) {
  return "[lockstep] rank " + std::to_string(rank) + (role.empty() ? "" : " (" + role + ")") +
         " is pid " + std::to_string(pid) + " from now on, which was a spare\n";
}

std::string spare_lost_line(const SpareEnd& end) {
  std::string line = "[lockstep] a spare " + describe_end(end.status) + ", pid " +
                     std::to_string(end.pid) + ", " +
                     (end.waited ? "before a rank needed it" : "and had not come to init()");
  if (!end.last_line.empty()) line += "; its last line: " + end.last_line;
  return line + "; " + spares_go_on(end.is_last);
}

std::string spare_not_started_line(const std::string& why, bool is_last) {
  return "[lockstep] a spare cannot be started: " + why + "; " + spares_go_on(is_last);
}

std::string format_failure(const WorkerFailure& failure, int world_size) {
  if (failure.complete) return failure.message + "\n";
  const std::string first = "rank " + std::to_string(failure.rank);
  const std::string of = " of " + std::to_string(world_size);
  const std::string who = first + of + role_part(failure);
  const std::string end = describe_end(failure) + ", pid " + std::to_string(failure.pid);
  // The report must not suggest that a rank that only waited is to blame.
  const bool others_fault = failure.gave_up && !failure.causes.empty();
  std::string text;
  if (others_fault) {
    for (const RankSight& cause : failure.causes) {
      text += "[lockstep] " + cause_line(cause, of);
      if (&cause == &failure.causes.front())
        text += "; " + names_of(failure.waited) + " gave up waiting";
      text += "\n" + last_collective_line(cause.last_collective);
    }
    text += "  " + first + on_host(failure.host) + " gave up first: " + end + "\n";
  } else {
    text = "[lockstep] " + who + on_host(failure.host) +
           (failure.gave_up ? " gave up waiting for others: " : " failed first: ") + end + "\n";
  }
  text += last_collective_line(failure.last_collective, others_fault ? " of " + first : "");
  if (!failure.message.empty()) text += "  error: " + indented(failure.message, "    ") + "\n";
  if (!failure.tail.empty()) {
    text +=
        "  last lines of " + (others_fault ? first + "'s " : "its ") + failure.tail_stream + ":\n";
    for (const std::string& line : failure.tail) text += "    " + line + "\n";
  }
  if (others_fault) return text;
  for (const RankSight& still : failure.causes) {
    text += "  besides, " + cause_line(still, "") + "\n";
  }
  return text;
}

}  // namespace lockstep::inline v0::launch
