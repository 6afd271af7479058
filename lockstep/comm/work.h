// Work: a non-blocking operation under way.
#pragma once

#include <memory>

#include "lockstep/core/deadline.h"

namespace lockstep {

// Made by the i-forms of Communicator. Move-only. Keeps the operation's tensors alive until it is
// over; they must not be read (results) or written (inputs) before wait() returned or test() gave
// true. Results of a Work that was destroyed unwaited are unspecified, though the operation itself
// goes on and the other ranks get theirs. Used by the communicator's thread only. A
// default-constructed Work is over.
class [[nodiscard]] Work {
 public:
  class State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() = default;

  // True when the operation is over and its results may be read, by the host too. Never blocks.
  // Throws what the operation failed with.
  bool test();

  // Blocks until the operation is over: for the communicator's time-out, or until `deadline`. On a
  // device, until it is over for the current stream (communicator.h); the deadline is then the
  // device's.
  // Throws Timeout, PeerLost, Mismatch; then the communicator is broken (core/errors.h).
  void wait();
  void wait(Deadline deadline);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
