// StopSignals: schedulers send SIGTERM or SIGUSR1 to end a training at its next step boundary. The
// training is saved, and the job resumes another time.
#pragma once

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// While an object exists, SIGTERM and SIGUSR1 have no other effect than that the first one is
// remembered. A signal that the process ignores or handles itself is left alone; such a handler may
// call note(). Signals belong to the process: several objects (ranks that are threads) see the same
// signal. The destructor of the last one restores the former handlers.
// Thread-safety: any thread.
class LOCKSTEP_API StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal since the oldest existing object was made; 0: none.
  static int received() noexcept;
  // Acts as if `signal` had come. False if there is no object. May be called in signal handlers.
  static bool note(int signal) noexcept;
};

}  // namespace lockstep::inline v0
