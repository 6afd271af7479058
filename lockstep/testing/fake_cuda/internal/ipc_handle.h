// What a handle that goes from process to process says. Not a public header.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "lockstep/core/unique_fd.h"
#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

namespace lockstep::inline v0::testing::fake {

// Memory, by the file that it is of.
struct SharedPlace {
  int32_t process = 0;
  int32_t file = -1;  // there
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(SharedPlace) <= sizeof(IpcHandle));

inline IpcHandle to_handle(const SharedPlace& place) {
  IpcHandle handle{};
  std::memcpy(handle.bytes, &place, sizeof place);
  return handle;
}

inline SharedPlace from_handle(const IpcHandle& handle) {
  SharedPlace place;
  std::memcpy(&place, handle.bytes, sizeof place);
  return place;
}

// The other process's file, or none.
inline UniqueFd open_file(const SharedPlace& place) {
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

}  // namespace lockstep::inline v0::testing::fake
