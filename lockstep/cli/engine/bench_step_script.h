// bench_step.py, which travels inside the program.
#pragma once

namespace lockstep::engine {

extern const char* const kStepScript;  // its text

}  // namespace lockstep::engine
