// Reaching: connects to processes for those who must not wait for them: owners of references that others have passed on.
// Not a public header.
//
// One thread, started when there is somebody to reach, tries one process after the other, each for a short time; who does
// not answer has its next turn after the others. So a process that is stopped, or a host that is gone, holds up neither
// the agent's workers nor for long those who wait for other processes.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/rpc/peer.h"

namespace lockstep::rpc::internal {

class Reaching {
 public:
  static constexpr std::chrono::milliseconds kTurn{2000};

  // Connects, or throws: Timeout where another turn may help, any other Error where none will. By the thread.
  using Connect = std::function<void(const Peer& peer, Deadline deadline)>;
  // Once in any case: null where the process has been reached; Cancelled where stop() came first. By the thread, or by
  // reach() itself where there is none. Must not throw.
  using Then = std::function<void(std::exception_ptr error)>;

  explicit Reaching(Connect connect);
  // stop(), if nobody has.
  ~Reaching();
  Reaching(const Reaching&) = delete;
  Reaching& operator=(const Reaching&) = delete;

  // Never waits. All who want the same incarnation share its turns. Any thread.
  void reach(const Peer& peer, Deadline deadline, const Then& then);
  // Waits at most until `deadline` for the thread, which tells those who wait; one that is stuck is left behind, as is the
  // calling thread itself.
  void stop(Deadline::Clock::time_point deadline) noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::rpc::internal
