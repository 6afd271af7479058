// step.py, which travels inside the program.
#pragma once

namespace lockstep::bench {

extern const char* const kStepScript;  // its text

}  // namespace lockstep::bench
