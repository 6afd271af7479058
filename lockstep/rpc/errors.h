// The errors of remote calls, besides those of core/errors.h.
//
// Timeout: the call's deadline passed; it may have run, or may still run, at the other end.
// PeerLost: the process is gone, with all its pending calls; a later call finds the process that
// has come back under its name. InvalidArgument: detected before anything was sent. The agent stays
// usable after each of them.
#pragma once

#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc {

// The function threw, or could not be called: unknown, or registered with other types. The message
// has the peer, the function, the exception's type and text, and where the function was registered.
class LOCKSTEP_API RemoteError : public Error {
 public:
  RemoteError(const std::string& what, std::string peer, std::string function, std::string type)
      : Error(what),
        peer_(std::move(peer)),
        function_(std::move(function)),
        type_(std::move(type)) {}
  const std::string& peer() const noexcept { return peer_; }          // the process that was called
  const std::string& function() const noexcept { return function_; }  // the name of the function
  // The exception's type.
  const std::string& type() const noexcept {
    return type_;
  }  // "lockstep::InvalidArgument", "c10::Error"

 private:
  std::string peer_, function_, type_;
};

// The call was cancelled here, or the agent was shut down.
class LOCKSTEP_API Cancelled : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::inline v0::rpc
