// Text of a file that cannot be trusted, made fit for one line of an error.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// In quotes, cut after 80 bytes, control characters as '?'.
std::string shown(std::string_view text);

}  // namespace lockstep
