// StopSignals: SIGTERM and SIGUSR1 as a wish that training ends at its next step boundary, for schedulers: what has
// been done is saved, and the job goes on another time.
#pragma once

namespace lockstep {

// While one lives, SIGTERM and SIGUSR1 to this process do nothing but be remembered: the first that comes. What the
// process ignores, or has a handler of its own for, stays as it is; such a handler may call note(). Signals are the
// process's, and so is what is remembered: several may live at once (ranks that are threads), all see the same. The
// last one that goes restores what was there. Any thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that has come since the eldest of those that live was made; 0: none has. Any thread.
  static int received() noexcept;
  // As if `signal` had come. False where nobody listens. For signal handlers, too.
  static bool note(int signal) noexcept;
};

}  // namespace lockstep
