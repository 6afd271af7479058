#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

struct InspectedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string checksum;  // "ok", "damaged", "missing", "none"
};

struct Inspected {
  fs::path path;
  std::string kind;  // "checkpoint", "directory", or a file's kind_of()
  Json trainer = nullptr;
  std::vector<InspectedFile> files;  // a directory's
  TensorFile model;
  int64_t parameters = 0, bytes = 0;
};

const char* checksum_word(FileVerdict verdict) {
  switch (verdict) {
    case FileVerdict::kGood:
      return "ok";
    case FileVerdict::kDamaged:
      return "damaged";
    default:
      return "missing";
  }
}

std::vector<InspectedFile> inspect_files(const fs::path& directory) {
  const auto verdicts = verify_checkpoint(directory);
  std::vector<InspectedFile> files;
  for (const auto& [name, verdict] : verdicts) {
    if (verdict == FileVerdict::kMissing)
      files.push_back({.name = name, .checksum = checksum_word(verdict)});
  }
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().filename();
    const auto verdict = verdicts.find(name);
    files.push_back(
        {.name = name,
         .bytes = entry.file_size(),
         .checksum = verdict == verdicts.end() ? "none" : checksum_word(verdict->second)});
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

// The step is "step" in our trainer.json, "global_step" in transformers' trainer_state.json.
Json trainer_of(const fs::path& directory) {
  for (const char* name : {"trainer.json", "trainer_state.json"}) {
    const fs::path path = directory / name;
    if (!fs::exists(path)) continue;
    Json json = Json::parse(read_small_file(path), nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) return json;
  }
  return nullptr;
}

std::string shape_in_brackets(const at::Tensor& tensor) {
  return "[" + joined(tensor.sizes()) + "]";
}

std::string dtype_text(const at::Tensor& tensor) {
  const char* name = safetensors_dtype_name(tensor.scalar_type());
  return name != nullptr ? name : c10::toString(tensor.scalar_type());
}

std::string kind_of(const TensorFile& file) {
  switch (file.kind) {
    case TensorFileKind::kSafetensors:
      return "safetensors";
    case TensorFileKind::kShardedSafetensors:
      return "sharded safetensors";
    case TensorFileKind::kSlicedSafetensors:
      return "sliced safetensors";
    case TensorFileKind::kShardedPt:
      return "sharded pt";
    default:
      return "pt";
  }
}

Json to_json(const Inspected& inspected) {
  const TensorFile& model = inspected.model;
  Json files = Json::array(), tensors = Json::array();
  for (const InspectedFile& file : inspected.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  for (const auto& [name, tensor] : model.contents.tensors) {
    tensors.push_back({{"name", name},
                       {"dtype", dtype_text(tensor)},
                       {"shape", tensor.sizes().vec()},
                       {"parameters", tensor.numel()},
                       {"bytes", tensor.numel() * tensor.element_size()}});
  }
  return {{"path", inspected.path.string()},
          {"kind", inspected.kind},
          {"file", model.path.string()},
          {"trainer", inspected.trainer},
          {"files", files},
          {"metadata", model.contents.metadata},
          {"found_in", model.found_in},
          {"left_out", model.left_out},
          {"parameters", inspected.parameters},
          {"bytes", inspected.bytes},
          {"tensors", tensors}};
}

void print_files(const std::vector<InspectedFile>& files) {
  if (files.empty()) return;
  Table table({{"file", Align::kLeft}, {"bytes"}, {"checksum", Align::kLeft}});
  for (const InspectedFile& file : files)
    table.add({file.name, std::to_string(file.bytes), file.checksum});
  std::cout << table.str() << '\n';
}

void print_trainer(const Json& trainer) {
  std::vector<std::string> parts;
  for (const char* key : {"step", "global_step", "epoch", "step_in_epoch", "samples"}) {
    if (trainer.is_object() && trainer.contains(key) && trainer[key].is_number())
      parts.push_back(std::string(key) + " " + trainer[key].dump());
  }
  if (!parts.empty()) std::cout << "Training stood at " << joined(parts) << "\n\n";
}

// Writes one line for a value of any kind.
std::string in_one_line(std::string_view text) {
  constexpr size_t kMost = 100;
  return printable(text, kMost);
}

void print(const Inspected& inspected, bool summary) {
  const TensorFile& model = inspected.model;
  std::cout << inspected.path.string() << ": " << inspected.kind << "\n\n";
  print_files(inspected.files);
  print_trainer(inspected.trainer);
  if (!summary) {
    Table table(
        {{"tensor", Align::kLeft}, {"dtype", Align::kLeft}, {"shape"}, {"parameters"}, {"bytes"}});
    for (const auto& [name, tensor] : model.contents.tensors) {
      table.add({in_one_line(name), dtype_text(tensor), shape_in_brackets(tensor),
                 std::to_string(tensor.numel()),
                 std::to_string(tensor.numel() * tensor.element_size())});
    }
    std::cout << table.str() << '\n';
  }
  std::cout << model.contents.tensors.size() << " tensors, " << inspected.parameters
            << " parameters, " << inspected.bytes << " bytes\n";
  for (const auto& [key, value] : model.contents.metadata)
    std::cout << "metadata " << in_one_line(key) << ": " << in_one_line(value) << '\n';
  if (!model.found_in.empty()) std::cout << "found under " << in_one_line(model.found_in) << '\n';
  if (!model.left_out.empty()) {
    std::vector<std::string> names;
    names.reserve(model.left_out.size());
    for (const std::string& name : model.left_out) names.push_back(in_one_line(name));
    std::cout << "besides them, not tensors: " << joined(names) << '\n';
  }
}

std::vector<std::string> damaged_files(const Inspected& inspected) {
  std::vector<std::string> bad;
  for (const InspectedFile& file : inspected.files) {
    if (file.checksum == "damaged" || file.checksum == "missing")
      bad.push_back(file.name + " (" + file.checksum + ")");
  }
  return bad;
}

// Tensors in slices may be more than one process can hold, so only their descriptions are read.
TensorFile outline_of_slices(const fs::path& index) {
  const fs::path directory = index.parent_path();
  const SlicedTensors slices = read_slices(directory, index.filename(), read_checksums(directory));
  TensorFile file{.kind = TensorFileKind::kSlicedSafetensors,
                  .path = index,
                  .contents = {.tensors = {}, .metadata = slices.metadata},
                  .left_out = {},
                  .found_in = {}};
  for (const auto& [name, tensor] : slices.tensors)
    file.contents.tensors.emplace_back(
        name, at::empty(tensor.sizes, at::device(at::kMeta).dtype(tensor.dtype)));
  return file;
}

TensorFile model_of(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? find_tensor_file(path).value_or(path) : path;
  if (file.filename().string().ends_with(".slices.json")) return outline_of_slices(file);
  return read_tensor_file(path);
}

Inspected inspect(const fs::path& given) {
  Inspected inspected{.path = checkpoint_meant(given), .kind = {}, .files = {}, .model = {}};
  if (fs::is_directory(inspected.path)) {
    inspected.kind = fs::exists(inspected.path / "trainer.json") ? "checkpoint" : "directory";
    inspected.trainer = trainer_of(inspected.path);
    inspected.files = inspect_files(inspected.path);
  }
  if (!damaged_files(inspected).empty()) return inspected;
  inspected.model = model_of(inspected.path);
  if (inspected.kind.empty()) inspected.kind = kind_of(inspected.model);
  for (const auto& [name, tensor] : inspected.model.contents.tensors) {
    inspected.parameters += tensor.numel();
    inspected.bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  }
  return inspected;
}

}  // namespace

int checkpoint_inspect(const Arguments& arguments) {
  return run_guarded("checkpoint inspect", [&] {
    CLI::App app(
        "What a checkpoint holds: its files with their checksums, where training stood, and the "
        "model's tensors. Of a file: its tensors.",
        "lockstep checkpoint inspect");
    std::string path, json_path;
    bool summary = false;
    app.add_option("PATH", path,
                   "checkpoint, output directory of a run, Hugging Face directory, .safetensors, "
                   ".pt, or the .index.json of several")
        ->required()
        ->type_name("PATH");
    app.add_flag("--summary", summary, "without the list of tensors");
    app.add_option("--json", json_path, "also write it to this file, tensors included")
        ->type_name("FILE");
    cli::add_example(app, {"lockstep checkpoint inspect runs/mnist"});
    parse(app, arguments);
    check_result_files({json_path});
    const Inspected inspected = inspect(path);
    const std::vector<std::string> damaged = damaged_files(inspected);
    if (damaged.empty())
      print(inspected, summary);
    else
      print_files(inspected.files);
    std::cout << std::flush;
    write_json(json_path, to_json(inspected));
    if (!damaged.empty()) {
      throw CheckpointError(inspected.path.string() + ": not as it was written: " +
                            joined(damaged) + "; use another checkpoint");
    }
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
