// Programs of their own that tests start on devices that the host plays (docs/fake-cuda.md). Where the tests are built with a
// sanitizer (kSanitized) they skip: its library wants to come before all that is preloaded.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

namespace lockstep::inline v0::testing {

// What gives a program so many devices, as NAME=value. `library` is the file of lockstep_fake_cuda_preload.
inline std::vector<std::string> fake_device_variables(const std::string& library, int devices) {
  return {"LD_PRELOAD=" + library, "LOCKSTEP_FAKE_CUDA=" + std::to_string(devices)};
}

// This process's environment, and more behind it: SubprocessOptions::env.
inline std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace lockstep::inline v0::testing
