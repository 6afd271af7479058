// The JSON files beside a checkpoint's tensors.
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/checkpoint/sharded_tensors.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/core/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  try {
    // What was accepted must survive being written and read again.
    const auto sums = lockstep::parse_checksums(json, "fuzz");
    if (lockstep::parse_checksums(lockstep::format_checksums(sums), "fuzz") != sums)
      __builtin_trap();
  } catch (const lockstep::Error&) {
  }
  try {
    const auto index = lockstep::parse_slice_index(json, "fuzz");
    if (lockstep::parse_slice_index(lockstep::format_slice_index(index), "fuzz") != index)
      __builtin_trap();
    lockstep::check_whole(index, "fuzz");
  } catch (const lockstep::Error&) {
  }
  try {
    lockstep::parse_weight_map(json, "fuzz");
  } catch (const lockstep::Error&) {
  }
  try {
    lockstep::to_json(lockstep::scaler_state_from_json(json, "fuzz"));
  } catch (const lockstep::Error&) {
  }
  return 0;
}
