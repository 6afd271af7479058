// Whether another process of this host is stopped.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The letter of /proc/PID/stat: 'R', 'S', 'D', 'T' (stopped by a signal), 't' (by a debugger), 'Z',
// ...; '\0' where the process does not exist or is not visible from here.
LOCKSTEP_API char process_state(int pid);

inline constexpr std::string_view kDebugger = "a debugger";
// The cause of the process's stop: "SIGSTOP" (or another stop signal, which only its parent can
// distinguish) or kDebugger; "" if it is not stopped.
std::string stopped_by(int pid);

// "pid 71", "pid 71, stopped by SIGSTOP": for messages.
std::string pid_words(int pid);

}  // namespace lockstep::inline v0
