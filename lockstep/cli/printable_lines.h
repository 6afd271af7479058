// Makes the text of a file fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::inline v0 {

// Makes every line of a text from a file, a model or another process printable(); tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace lockstep::inline v0
