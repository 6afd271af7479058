// The text of an exception, for code that passes it on to other ranks or threads.
#pragma once

#include <exception>
#include <string>

namespace lockstep::inline v0 {

// Empty only for a null pointer.
inline std::string exception_text(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return *known.what() != 0 ? known.what() : "an exception without a message";
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace lockstep::inline v0
