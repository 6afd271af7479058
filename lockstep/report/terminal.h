// The terminal, if any, that stderr writes to.
#pragma once

#include <cstddef>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The abilities of a terminal.
struct Terminal {
  bool interactive = false;  // lines may be redrawn
  bool unicode = false;      // it shows UTF-8
  int columns = 80;
};

// Interactive if LOCKSTEP_TTY=1 (a launcher whose own output is a terminal sets it for rank 0) or
// `fd` is a terminal, unless TERM=dumb. The width is LOCKSTEP_COLUMNS, else the terminal's own
// width, else COLUMNS, else 80. It has unicode if the first of LC_ALL, LC_CTYPE and LANG that is
// set names a UTF-8 locale.
LOCKSTEP_API Terminal find_terminal(int fd, const EnvLookup& env);

// The width of the terminal at `fd`, to which text for people is wrapped; `otherwise` if it is not
// a terminal.
LOCKSTEP_API size_t columns_of(int fd, size_t otherwise);

}  // namespace lockstep::inline v0
