#include "lockstep/core/errors.h"

#include <cerrno>
#include <system_error>

namespace lockstep::inline v0 {

SystemError system_error(const std::string& what, int errnum) {
  std::string text = what + ": " + std::generic_category().message(errnum);
  if (errnum == EMFILE) text += " (raise the limit of this process: ulimit -n)";
  return SystemError(text, errnum);
}

}  // namespace lockstep::inline v0
