#include "lockstep/core/check.h"

#include <string>

namespace lockstep::inline v0 {

void check_failed(const char* condition, const char* message, std::source_location site) {
  throw InvariantError(std::string(site.file_name()) + ":" + std::to_string(site.line()) +
                       ": invariant broken: " + condition + " (" + message +
                       "). This is a bug in Lockstep; please report it with this line.");
}

}  // namespace lockstep::inline v0
