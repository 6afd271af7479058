// DeepSpeed-style configurations.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/zero/zero_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const zero::ZeroConfig config = zero::zero_config_from_json(text, "fuzz");
    // What was accepted must survive being written and read again.
    if (zero::zero_config_from_json(zero::to_json(config), "fuzz") != config) std::abort();
    for (const int ranks : {1, 2, 7}) zero::resolved(config, ranks);
  } catch (const Error&) {
  }
  return 0;
}
