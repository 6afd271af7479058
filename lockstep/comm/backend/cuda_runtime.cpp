#include "lockstep/comm/backend/cuda_runtime.h"

#include <dlfcn.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void* open_cuda_runtime(const std::string& who) {
  for (const char* file : {"libcudart.so.13", "libcudart.so.12"}) {
    if (void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw LaunchError(who +
                    " needs the CUDA runtime, but there is no libcudart.so.13; it comes with a "
                    "CUDA build of libtorch (scripts/quickstart --cuda)");
}

}  // namespace lockstep::inline v0
