#include "lockstep/launch/failure_report.h"

#include <signal.h>
#include <string.h>

namespace lockstep::launch {
namespace {

// Lines after the first are put under the first.
std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe_end(const WorkerFailure& failure) {
  if (failure.signal == 0) return "exited with code " + std::to_string(failure.exit_code);
  std::string text = "killed by " + signal_name(failure.signal);
  if (failure.signal == SIGKILL)
    text += " (by the kernel for lack of memory, unless somebody sent it)";
  return text;
}

std::string describe_call(const BoardRecord& record) {
  if (record.pid == 0) return "";
  if (record.sequence == 0) return "none yet";
  return "#" + std::to_string(record.sequence) + " " + record.call +
         (record.state == 1 ? " (still inside)" : " (had returned)");
}

std::string format_failure(const WorkerFailure& failure, int world_size) {
  if (failure.complete) return failure.message + "\n";
  std::string text =
      "[lockstep] rank " + std::to_string(failure.rank) + " of " + std::to_string(world_size) +
      (failure.host.empty() ? "" : " on " + failure.host) +
      " failed first: " + describe_end(failure) + ", pid " + std::to_string(failure.pid) + "\n";
  if (!failure.last_collective.empty())
    text += "  last collective: " + failure.last_collective + "\n";
  if (!failure.message.empty()) text += "  error: " + indented(failure.message, "    ") + "\n";
  if (!failure.tail.empty()) {
    text += "  last lines of its " + failure.tail_stream + ":\n";
    for (const std::string& line : failure.tail) text += "    " + line + "\n";
  }
  return text;
}

}  // namespace lockstep::launch
