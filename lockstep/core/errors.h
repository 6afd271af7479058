// Errors of Lockstep.
//
// There are two kinds. Recoverable errors are the exceptions below, one type per cause: each
// message says what happened, where, and what to do next. Broken invariants are bugs of Lockstep
// and are reported by LOCKSTEP_CHECK (check.h).
//
// After Timeout, PeerLost or Mismatch from a Communicator, that communicator is broken: the
// contents of the tensors in its calls are unspecified and every later call throws the same error
// at once. Make a new one, or exit.
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Base of every exception that Lockstep throws on purpose.
class LOCKSTEP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A caller's mistake, detected before anything was sent or changed: a shape, a dtype, a rank out of
// range, a bad option.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A wait passed its deadline. The message names the wait, its duration and the missing ranks.
class LOCKSTEP_API Timeout : public Error {
 public:
  using Error::Error;
};

// A peer is gone: its process died, or its end of the communicator was destroyed.
class LOCKSTEP_API PeerLost : public Error {
 public:
  PeerLost(const std::string& what, int rank) : Error(what), rank_(rank) {}
  int rank() const noexcept { return rank_; }  // the lost rank, or -1 where the engine cannot tell

 private:
  int rank_;
};

// Ranks called different operations, or the same one with different arguments: the message shows
// both calls. Also thrown where a rank has ended that the others must meet again.
class LOCKSTEP_API Mismatch : public Error {
 public:
  using Error::Error;
};

// The job's store could not be reached, refused the secret, or answered nonsense.
class LOCKSTEP_API StoreError : public Error {
 public:
  using Error::Error;
};

// A data set or another input file is missing, truncated, corrupt or inconsistent.
class LOCKSTEP_API DataError : public Error {
 public:
  using Error::Error;
};

// A checkpoint is missing, corrupt, or does not fit the model.
class LOCKSTEP_API CheckpointError : public Error {
 public:
  using Error::Error;
};

// A process could not be started, or the requested launch is impossible.
class LOCKSTEP_API LaunchError : public Error {
 public:
  using Error::Error;
};

// A system call failed; the message has the call, its object and strerror.
class LOCKSTEP_API SystemError : public Error {
 public:
  SystemError(const std::string& what, int errnum) : Error(what), errnum_(errnum) {}
  int errnum() const noexcept { return errnum_; }  // the system's number of the error

 private:
  int errnum_;
};

// "what: strerror(errnum)". Reads no global state besides its arguments.
LOCKSTEP_API SystemError system_error(const std::string& what, int errnum);

}  // namespace lockstep::inline v0
