// NVTX ranges: parts of a thread's time by name, which NVIDIA Nsight Systems shows beside what the
// device did meanwhile. They come from libtorch, whose CUDA builds have NVTX.
#pragma once

#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// Whether this libtorch has NVTX. It does not touch a device.
// Thread-safety: any thread.
LOCKSTEP_API bool has_nvtx() noexcept;
// Throws: InvalidArgument that begins with `name`, the setting that asks for ranges, unless
// has_nvtx().
LOCKSTEP_API void require_nvtx(const std::string& name);

// A range of the calling thread, from begin() to the end of the scope. Ranges of a thread lie within
// each other. Without NVTX there is none.
// Thread-safety: its thread.
class [[nodiscard]] LOCKSTEP_API NvtxRange {
 public:
  NvtxRange() = default;
  ~NvtxRange() {
    if (begun_) end();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

  // `name`: NUL-terminated; it is copied.
  // Requires: it has not begun.
  void begin(const char* name) noexcept;

 private:
  void end() noexcept;

  bool begun_ = false;
};

}  // namespace lockstep::inline v0::device
