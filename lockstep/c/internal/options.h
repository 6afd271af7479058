// Option structs of callers that were compiled with another version of their header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {

// Options as this library knows them: `defaults`, overwritten by the bytes that the caller has. A
// longer struct, of a newer header, is accepted if the bytes that are not known here are zero.
// `name`: of the struct, for messages. `given` may be null where defaults suffice.
// Throws: InvalidArgument for a size that no header has had, or for a newer option that is set.
template <typename Options>
Options known_options(const Options* given, const Options& defaults, const std::string& name) {
  static_assert(std::is_trivially_copyable_v<Options>);
  if (given == nullptr) return defaults;
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size || size > 4096) {
    throw InvalidArgument(name + ".struct_size is " + std::to_string(size) +
                          "; it is set to sizeof(" + name + ")");
  }
  const auto* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw InvalidArgument(name + " has an option that this version of Lockstep does not know");
  }
  Options known = defaults;
  std::memcpy(&known, given, std::min(size, sizeof(Options)));
  return known;
}

// True if nothing follows `last` in its struct. Bytes after it would be padding, which a caller does
// not set, and which an option of a newer header would be read from.
#define LOCKSTEP_C_ENDS_WITH(Options, last) \
  (offsetof(Options, last) + sizeof(Options::last) == sizeof(Options))

inline std::string text_or(const char* text, const char* otherwise) {
  return text != nullptr ? text : otherwise;
}

}  // namespace lockstep::inline v0::c_api
