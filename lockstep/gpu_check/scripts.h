// The program that runs in Python: a string, made from contest.py by the build.
#pragma once

namespace lockstep::inline v0::gpu_check {

extern const char* const kContestScript;

}  // namespace lockstep::inline v0::gpu_check
