#include "lockstep/checkpoint/sharded_safetensors.h"

#include "lockstep/checkpoint/sharded_tensors.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

Safetensors read_model_safetensors(const fs::path& directory, const FileSums& sums) {
  if (fs::exists(directory / kWhole)) {
    check_listed(sums, kWhole, directory.string());
    return read_safetensors(directory / kWhole, find_sum(sums, kWhole));
  }
  if (fs::exists(directory / kIndex)) return read_sharded(directory / kIndex, sums).contents;
  throw CheckpointError(directory.string() + ": has neither " + kWhole + " nor " + kIndex);
}

bool has_model_safetensors(const fs::path& directory) {
  return fs::exists(directory / kWhole) || fs::exists(directory / kIndex);
}

}  // namespace lockstep
