// Whether another process of this host stands still.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The letter of /proc/PID/stat: 'R', 'S', 'D', 'T' (stopped by a signal), 't' (by a debugger), 'Z',
// ...; '\0' where there is no such process, or it is not to be seen from here.
char process_state(int pid);

inline constexpr std::string_view kDebugger = "a debugger";
// By what the process stands still: "SIGSTOP" (or another stop signal, which only its parent can
// tell apart and learns), kDebugger; "" when it does not.
std::string stopped_by(int pid);

// "pid 71", "pid 71, stopped by SIGSTOP": for messages.
std::string pid_words(int pid);

}  // namespace lockstep
