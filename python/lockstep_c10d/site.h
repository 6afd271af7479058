// kSite: what stands for the caller's source line in messages. The line is Python's, and asking for
// it would take the interpreter's lock; Python's own traceback shows it.
#pragma once

#include <source_location>

namespace lockstep::python {

inline constexpr std::source_location kSite =
#line 1 "torch.distributed"
    std::source_location::current();

}  // namespace lockstep::python
