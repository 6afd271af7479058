// Work: a pending non-blocking operation.
#pragma once

#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Made by the i-forms of Communicator. Move-only. It keeps the operation's tensors alive until the
// operation is complete; before wait() has returned or test() has given true, results must not be
// read and inputs must not be written. The results of a Work that was destroyed without a wait are
// unspecified, though the operation itself goes on and the other ranks get theirs. A
// default-constructed Work is complete.
// Thread-safety: the communicator's thread only.
class [[nodiscard]] LOCKSTEP_API Work {
 public:
  class State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() = default;

  // True when the operation is complete and its results may be read, by the host too. Never blocks.
  // Throws: the operation's error.
  bool test();

  // Blocks until the operation is complete: for the communicator's time-out, or until `deadline`.
  // On a device, it orders the current stream after the operation (communicator.h); the deadline is
  // then the device's.
  // Throws: Timeout, PeerLost, Mismatch; the communicator is then broken (core/errors.h).
  void wait();
  void wait(Deadline deadline);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0
