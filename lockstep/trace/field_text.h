// The texts in the fixed fields of a CallRecord.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

namespace lockstep::inline v0::trace {

// Up to the first NUL, if there is one: fields may come from another process, so nothing is read
// past their end.
template <size_t kSize>
std::string field_text(const char (&field)[kSize]) {
  return {field, ::strnlen(field, kSize)};
}

}  // namespace lockstep::inline v0::trace
