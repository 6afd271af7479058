#include "lockstep/checkpoint/sharded_safetensors.h"

#include "lockstep/checkpoint/sharded_tensors.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSlices = "model.slices.json";

bool has_whole_tensors(const fs::path& directory) {
  return fs::exists(directory / kWhole) || fs::exists(directory / kIndex);
}

}  // namespace

Safetensors read_model_safetensors(const fs::path& directory, const FileSums& sums) {
  if (fs::exists(directory / kWhole)) {
    check_listed(sums, kWhole, directory.string());
    return read_safetensors(directory / kWhole, find_sum(sums, kWhole));
  }
  if (fs::exists(directory / kIndex)) return read_sharded(directory / kIndex, sums).contents;
  if (fs::exists(directory / kSlices)) return read_slices(directory, kSlices, sums).whole();
  throw CheckpointError(directory.string() + ": has neither " + kWhole + " nor " + kIndex +
                        " nor " + kSlices);
}

SlicedTensors read_model_slices(const fs::path& directory, const FileSums& sums) {
  if (!has_whole_tensors(directory) && fs::exists(directory / kSlices))
    return read_slices(directory, kSlices, sums);
  return read_model_safetensors(directory, sums);
}

bool has_model_safetensors(const fs::path& directory) {
  return has_whole_tensors(directory) || fs::exists(directory / kSlices);
}

}  // namespace lockstep::inline v0
