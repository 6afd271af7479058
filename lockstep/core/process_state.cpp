#include "lockstep/core/process_state.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <fstream>

namespace lockstep::inline v0 {

char process_state(int pid) {
  if (pid <= 0) return '\0';
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
  // "pid (name) state ...": the name may contain any character.
  const auto close = text.rfind(')');
  return close == std::string::npos || close + 2 >= text.size() ? '\0' : text[close + 2];
}

std::string stopped_by(int pid) {
  const char state = process_state(pid);
  if (state == 't') return std::string(kDebugger);
  if (state != 'T') return "";
  siginfo_t info{};
  const int looked = ::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG | WNOWAIT);
  const bool known = looked == 0 && info.si_pid == pid && info.si_code == CLD_STOPPED;
  const char* name = ::sigabbrev_np(known ? info.si_status : SIGSTOP);
  return name != nullptr ? std::string("SIG") + name : "a signal";
}

std::string pid_words(int pid) {
  const std::string by = stopped_by(pid);
  return "pid " + std::to_string(pid) + (by.empty() ? "" : ", stopped by " + by);
}

}  // namespace lockstep::inline v0
