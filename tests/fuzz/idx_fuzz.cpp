// idx files, plain and gzip.
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/errors.h"
#include "lockstep/data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    lockstep::data::parse_idx(std::as_bytes(std::span(data, size)), "fuzz");
  } catch (const lockstep::Error&) {
  }
  return 0;
}
