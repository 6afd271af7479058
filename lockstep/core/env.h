// Reading and parsing environment variables, numbers and durations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How code reads the environment: a function from name to value. Tests pass a map; programs pass
// process_env().
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

// getenv(3) of this process. An empty value counts as unset.
LOCKSTEP_API EnvLookup process_env();

// The whole of `text` as a decimal integer within [min, max]; nullopt otherwise.
LOCKSTEP_API std::optional<int64_t> parse_int(std::string_view text, int64_t min = INT64_MIN,
                                              int64_t max = INT64_MAX);
// The whole of `text` as a finite decimal number, '.' as the point in any locale; nullopt
// otherwise.
LOCKSTEP_API std::optional<double> parse_double(std::string_view text);

// The variable as an integer.
// Throws: InvalidArgument that names the variable, its value and the range.
LOCKSTEP_API std::optional<int64_t> env_int(const EnvLookup& env, std::string_view name,
                                            int64_t min = INT64_MIN, int64_t max = INT64_MAX);
// The variable as a switch: 1/0, true/false, yes/no, on/off.
// Throws: InvalidArgument otherwise.
LOCKSTEP_API bool env_flag(const EnvLookup& env, std::string_view name, bool fallback);

}  // namespace lockstep::inline v0
