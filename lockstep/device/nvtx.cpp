#include "lockstep/device/nvtx.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <exception>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::device {
namespace {

// A CUDA build of libtorch puts NVTX there when it is loaded; the others throw from all functions
// but enabled().
const torch::profiler::impl::ProfilerStubs& stubs() {
  return *torch::profiler::impl::cudaStubs();
}

}  // namespace

bool has_nvtx() noexcept {
  try {
    return stubs().enabled();
  } catch (const std::exception&) {
    return false;
  }
}

void require_nvtx(const std::string& name) {
  if (!has_nvtx())
    throw InvalidArgument(name +
                          " is on, and this libtorch was built without CUDA and has no NVTX; leave "
                          "it out, or use a libtorch with CUDA");
}

void NvtxRange::begin(const char* name) noexcept {
  try {
    if (!stubs().enabled()) return;
    stubs().rangePush(name);
    begun_ = true;
  } catch (const std::exception&) {  // a profiler's picture is not worth a failure
  }
}

void NvtxRange::end() noexcept {
  try {
    stubs().rangePop();
  } catch (const std::exception&) {
  }
}

}  // namespace lockstep::inline v0::device
