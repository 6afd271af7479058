// Ensures that descriptors 0, 1 and 2 exist in every process that starts others.
#pragma once

namespace lockstep::inline v0 {

// Opens /dev/null where stdin, stdout or stderr is closed (cron, a daemon, `>&-`): otherwise the
// next descriptor that the process opens would get that number, and output for the user would go
// into a pipe or a file. Call it first in main(), before another thread runs. Failures to open are
// ignored.
void open_standard_streams() noexcept;

}  // namespace lockstep::inline v0
