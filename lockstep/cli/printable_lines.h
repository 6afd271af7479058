// Text of a file, fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// What a file, a model or another process says, in its lines: printable() of each, tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace lockstep
