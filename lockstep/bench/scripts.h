// Python programs that travel inside this one.
#pragma once

namespace lockstep::bench {

extern const char* const kStepScript;  // step.py
extern const char* const kRayScript;   // rpc_ray.py

}  // namespace lockstep::bench
