// Descriptors 0, 1 and 2 are there in every process that starts others.
#pragma once

namespace lockstep {

// Opens /dev/null where stdin, stdout or stderr is closed (cron, a daemon, `>&-`): the next descriptor that the process
// opens would have its number, and what is meant for the user would go into a pipe or a file. First thing in main(),
// before another thread runs. Does nothing about what cannot be opened.
void open_standard_streams() noexcept;

}  // namespace lockstep
