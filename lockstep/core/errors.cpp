#include "lockstep/core/errors.h"

#include <system_error>

namespace lockstep {

SystemError system_error(const std::string& what, int errnum) {
  return SystemError(what + ": " + std::generic_category().message(errnum), errnum);
}

}  // namespace lockstep
