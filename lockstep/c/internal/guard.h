// guarded(): the one place where exceptions become status codes.
#pragma once

#include <exception>
#include <string>

#include "lockstep/c/base.h"
#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::c_api {

// A failure of the caller's own function.
class CallbackError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Forgets the thread's last error.
void begin_call() noexcept;
// Keeps the text of the exception that is being handled, and returns its status.
lockstep_status status_of_current_exception() noexcept;
// Forgets the line that lockstep_site() has named.
void end_call() noexcept;

// The line that lockstep_site() has named for this call; none otherwise.
Site caller() noexcept;

// Runs `fn` and returns what became of it.
template <typename F>
lockstep_status guarded(F&& fn) noexcept {
  begin_call();
  lockstep_status status = LOCKSTEP_OK;
  try {
    fn();
  } catch (...) {
    status = status_of_current_exception();
  }
  end_call();
  return status;
}

// Throws InvalidArgument "`name` is NULL" for a null pointer; the object otherwise.
template <typename T>
T& needed(T* pointer, const char* name);

[[noreturn]] void throw_null(const char* name);

template <typename T>
T& needed(T* pointer, const char* name) {
  if (pointer == nullptr) throw_null(name);
  return *pointer;
}

}  // namespace lockstep::inline v0::c_api
