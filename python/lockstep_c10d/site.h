// The line of the Python program that calls, for the messages of every rank.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::python {

// Frames of files below these folders are not the program's: those of torch, and of this package. Once, as the
// module is imported.
void set_foreign_folders(std::vector<std::string> folders);

// Of the innermost frame of this thread that is the program's own; "torch.distributed:1" where there is none, as in
// a thread of C++. To be called without the interpreter's lock, which it takes for a moment.
Site caller_site();

}  // namespace lockstep::inline v0::python
