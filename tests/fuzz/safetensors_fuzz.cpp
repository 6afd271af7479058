// safetensors files: their header as JSON, and whole files, mapped.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "file_of.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/errors.h"

namespace {

// The JSON of a header, as if followed by that much data.
void header(std::string_view json, uint64_t data_bytes) {
  try {
    const auto header = lockstep::parse_safetensors_header(json, data_bytes, "fuzz");
    // What was accepted must survive being written and read again.
    const auto text = lockstep::format_safetensors_header(header);
    lockstep::parse_safetensors_header(text, data_bytes, "fuzz");
  } catch (const lockstep::Error&) {
  }
}

void file(const uint8_t* data, size_t size) {
  const lockstep::FileOf file(data, size);
  try {
    const auto contents = lockstep::read_safetensors(file.path());
    // The bytes of every tensor are there to be read and written.
    for (const auto& [name, tensor] : contents.tensors) {
      auto* bytes = static_cast<volatile uint8_t*>(tensor.mutable_data_ptr());
      for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = bytes[i] + 1;
    }
  } catch (const lockstep::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kLength = 8;  // of the header, at the start of a file
  if (size >= kLength) {
    const std::string_view json(reinterpret_cast<const char*>(data + kLength), size - kLength);
    header(json, uint64_t{1} << (data[0] % 64));
  }
  file(data, size);
  return 0;
}
