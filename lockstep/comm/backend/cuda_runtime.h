// The CUDA runtime, loaded at run time: no CUDA toolkit is needed to build. Not a public header.
#pragma once

#include <string>

namespace lockstep::inline v0 {

// The dlopen() handle of the runtime that libtorch uses, which is loaded already where CUDA exists;
// never closed. `who` names the caller in the error. Throws a one-line LaunchError.
void* open_cuda_runtime(const std::string& who);

}  // namespace lockstep::inline v0
