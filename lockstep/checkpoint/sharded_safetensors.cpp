#include "lockstep/checkpoint/sharded_safetensors.h"

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::optional<FileSum> sum_of(const FileSums& sums, const std::string& name) {
  const auto found = sums.find(name);
  return found == sums.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& source) {
  std::map<std::string, std::string> files;
  try {
    const auto parsed = nlohmann::json::parse(json);
    for (const auto& [tensor, file] :
         parsed.at("weight_map").get_ref<const nlohmann::json::object_t&>()) {
      const auto& name = file.get_ref<const std::string&>();
      if (!is_plain_file_name(name)) {
        throw CheckpointError(source +
                              ": names a file outside its directory; it is no index that a "
                              "library wrote");
      }
      files.emplace(tensor, name);
    }
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source +
                          ": is not the index of safetensors files (a weight_map from tensors to "
                          "files); it is damaged");
  }
  return files;
}

Safetensors read_sharded_safetensors(const fs::path& index, const FileSums& sums) {
  const auto weight_map = parse_safetensors_index(read_small_file(index), index.string());
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  Safetensors whole;
  for (const std::string& file : files) {
    Safetensors part = read_safetensors(index.parent_path() / file, sum_of(sums, file));
    std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(whole.tensors));
    whole.metadata.merge(part.metadata);
  }
  sort_by_name(&whole.tensors);
  for (size_t i = 1; i < whole.tensors.size(); ++i) {
    if (whole.tensors[i].first == whole.tensors[i - 1].first) {
      throw CheckpointError(index.string() + ": two of its files hold the tensor '" +
                            whole.tensors[i].first + "'; keep the files of one model only");
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (whole.find(tensor) == nullptr) {
      throw CheckpointError((index.parent_path() / file).string() + ": lacks the tensor '" +
                            tensor + "' that " + index.filename().string() + " promises");
    }
  }
  return whole;
}

Safetensors read_model_safetensors(const fs::path& directory, const FileSums& sums) {
  if (fs::exists(directory / kWhole))
    return read_safetensors(directory / kWhole, sum_of(sums, kWhole));
  if (fs::exists(directory / kIndex)) {
    if (const auto sum = sum_of(sums, kIndex)) {
      const std::string text = read_small_file(directory / kIndex);
      check_sum(checksum_of(text.data(), text.size()), *sum, (directory / kIndex).string());
    }
    return read_sharded_safetensors(directory / kIndex, sums);
  }
  throw CheckpointError(directory.string() + ": has neither " + kWhole + " nor " + kIndex);
}

bool has_model_safetensors(const fs::path& directory) {
  return fs::exists(directory / kWhole) || fs::exists(directory / kIndex);
}

}  // namespace lockstep
