// BackgroundConnector: connects in the background to processes that callers must not wait for:
// owners of references that others have passed on. Not a public header.
//
// One thread, started when there is a process to reach, tries one process after another, each for a
// short time; a process that does not answer has its next turn after the others. A stopped process
// or a host that is gone therefore delays neither the agent's workers nor, for long, the
// connections to other processes.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/rpc/peer.h"

namespace lockstep::inline v0::rpc::internal {

class BackgroundConnector {
 public:
  static constexpr std::chrono::milliseconds kTurn{2000};

  // Connects, or throws: Timeout where another try may help, any other Error where none will.
  // Called by the thread.
  using Connect = std::function<void(const Peer& peer, Deadline deadline)>;
  // Called exactly once: with null when the process has been reached, with Cancelled where stop()
  // came first. Called by the thread, or by reach() itself where there is none. Must not throw.
  using Then = std::function<void(std::exception_ptr error)>;

  explicit BackgroundConnector(Connect connect);
  // Calls stop() unless it was called.
  ~BackgroundConnector();
  BackgroundConnector(const BackgroundConnector&) = delete;
  BackgroundConnector& operator=(const BackgroundConnector&) = delete;

  // Never waits. All requests for the same incarnation share its turns.
  // Thread-safety: any thread.
  void reach(const Peer& peer, Deadline deadline, const Then& then);
  // Waits at most until `deadline` for the thread, which calls the waiting callbacks; a stuck
  // thread is left behind, and so is the calling thread itself.
  void stop(Deadline::Clock::time_point deadline) noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0::rpc::internal
