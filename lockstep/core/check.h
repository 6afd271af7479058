// Invariant checks: conditions that only a bug of Lockstep can break. User input is checked with
// InvalidArgument.
#pragma once

#include <source_location>
#include <stdexcept>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A broken invariant of Lockstep itself. Not meant to be caught; please report it.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] LOCKSTEP_API void check_failed(
    const char* condition, const char* message,
    std::source_location site = std::source_location::current());

}  // namespace lockstep::inline v0

// Always enabled. `message` is a string literal that describes the invariant.
#define LOCKSTEP_CHECK(condition, message)           \
  do {                                               \
    if (!(condition)) [[unlikely]]                   \
      ::lockstep::check_failed(#condition, message); \
  } while (false)
