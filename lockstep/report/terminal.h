// What stands at the other end of stderr.
#pragma once

#include <cstddef>

#include "lockstep/core/env.h"

namespace lockstep {

struct Terminal {
  bool interactive = false;  // lines may be redrawn
  bool unicode = false;      // it shows UTF-8
  int columns = 80;
};

// LOCKSTEP_TTY=1 (set for rank 0 by a launcher whose own output is a terminal) or a `fd` that is
// one; LOCKSTEP_COLUMNS, else the terminal's own width, else COLUMNS, else 80; unicode unless
// LC_ALL, LC_CTYPE or LANG (the first that is set) is no UTF-8 locale. TERM=dumb is not
// interactive.
Terminal find_terminal(int fd, const EnvLookup& env);

// How wide the terminal at `fd` is, of which text for people makes lines; `otherwise` where there is none.
size_t columns_of(int fd, size_t otherwise);

}  // namespace lockstep
