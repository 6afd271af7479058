// The CUDA runtime, loaded at run time: no CUDA toolkit is needed to build. Not a public header.
#pragma once

#include <string>

namespace lockstep {

// dlopen()'s handle of the runtime that libtorch uses, which is loaded already where there is CUDA
// at all; never closed. `who` needs it. Throws LaunchError of one line.
void* open_cuda_runtime(const std::string& who);

}  // namespace lockstep
