// The JSON header of safetensors files. The first byte chooses how long the data is said to be.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint64_t data_bytes = uint64_t{1} << (data[0] % 64);
  const std::string_view json(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    const auto header = lockstep::parse_safetensors_header(json, data_bytes, "fuzz");
    // What was accepted must survive being written and read again.
    const auto text = lockstep::format_safetensors_header(header);
    lockstep::parse_safetensors_header(text, data_bytes, "fuzz");
  } catch (const lockstep::Error&) {
  }
  return 0;
}
