// Text of a file that cannot be trusted, made fit for one line of an error.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// printable() in quotes, cut after 80 bytes.
std::string shown(std::string_view text);

}  // namespace lockstep
