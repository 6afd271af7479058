#include "lockstep/checkpoint/sharded_tensors.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/mapped_file.h"
#include "lockstep/checkpoint/pt_contents.h"
#include "lockstep/checkpoint/pt_file.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

// The files of the index must exist: in a model of many files, one is easily forgotten in a
// download.
void check_present(const fs::path& file, const fs::path& index) {
  std::error_code error;
  if (fs::exists(file, error) || error) return;
  throw CheckpointError(file.string() + ": is missing, but " + index.filename().string() +
                        " names it; get all files of the model");
}

void add(TensorFile part, TensorFile* whole) {
  if (part.kind == TensorFileKind::kPt) whole->kind = TensorFileKind::kShardedPt;
  std::move(part.contents.tensors.begin(), part.contents.tensors.end(),
            std::back_inserter(whole->contents.tensors));
  whole->contents.metadata.merge(part.contents.metadata);
  std::move(part.left_out.begin(), part.left_out.end(), std::back_inserter(whole->left_out));
  if (whole->found_in.empty()) whole->found_in = std::move(part.found_in);
}

}  // namespace

TensorFile read_unsharded(const fs::path& path, const std::optional<FileSum>& expected) {
  if (!looks_like_pt(MappedFile::open(path)->bytes())) {
    return {.kind = TensorFileKind::kSafetensors,
            .path = path,
            .contents = read_safetensors(path, expected),
            .left_out = {},
            .found_in = {}};
  }
  PtFile file = read_pt(path, expected);
  return {.kind = TensorFileKind::kPt,
          .path = path,
          .contents = std::move(file.contents),
          .left_out = std::move(file.left_out),
          .found_in = std::move(file.found_in)};
}

std::map<std::string, std::string> parse_weight_map(std::string_view json,
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
                          ": is not the index of a model's files (a weight_map from tensors to "
                          "files); it is damaged");
  }
  return files;
}

TensorFile read_sharded(const fs::path& index, const FileSums& sums) {
  const std::string text = read_small_file(index);
  if (const auto sum = find_sum(sums, index.filename()))
    check_sum(checksum_of(text.data(), text.size()), *sum, index.string());
  const auto weight_map = parse_weight_map(text, index.string());
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  TensorFile whole{.kind = TensorFileKind::kShardedSafetensors,
                   .path = index,
                   .contents = {},
                   .left_out = {},
                   .found_in = {}};
  for (const std::string& file : files) {
    const fs::path part = index.parent_path() / file;
    check_present(part, index);
    add(read_unsharded(part, find_sum(sums, file)), &whole);
  }
  NamedTensors& tensors = whole.contents.tensors;
  sort_by_name(&tensors);
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].first == tensors[i - 1].first) {
      throw CheckpointError(index.string() + ": two of its files hold the tensor " +
                            shown(tensors[i].first) + "; keep the files of one model only");
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (whole.contents.find(tensor) == nullptr) {
      throw CheckpointError((index.parent_path() / file).string() + ": lacks the tensor " +
                            shown(tensor) + " that " + index.filename().string() + " promises");
    }
  }
  return whole;
}

}  // namespace lockstep::inline v0
