// Makes text of an untrusted file fit for one line of an error.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::inline v0 {

// printable() in quotes, cut after 80 bytes.
std::string shown(std::string_view text);

}  // namespace lockstep::inline v0
