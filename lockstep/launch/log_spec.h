// The destinations of the ranks' output, in torchrun's words. Pure.
#pragma once

#include <map>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::launch {

// A set of streams, with torchrun's numbers.
enum class Redirect { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };

// Streams by local rank; key -1 stands for all ranks that have no entry of their own.
using RedirectMap = std::map<int, Redirect>;

// Parses "3" (both streams of all ranks) or "0:3,1:1" (by local rank).
// Throws: InvalidArgument that shows the text.
LOCKSTEP_API RedirectMap parse_redirects(const std::string& text);

// The entry of `map` for the rank.
LOCKSTEP_API Redirect redirect_of(const RedirectMap& map, int local_rank);
LOCKSTEP_API bool has_stdout(Redirect redirect);
LOCKSTEP_API bool has_stderr(Redirect redirect);

}  // namespace lockstep::inline v0::launch
