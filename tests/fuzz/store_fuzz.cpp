// The store's frames, in both directions.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/errors.h"
#include "lockstep/store/store_protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  try {
    lockstep::decode_store_request(body);
  } catch (const lockstep::Error&) {
  }
  try {
    lockstep::decode_store_response(body);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
