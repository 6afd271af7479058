#include "lockstep/checkpoint/internal/checkpoint_files.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::internal {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kFailure = "failure";
constexpr std::string_view kTensors = ".safetensors";

std::string whole_name(const char* stem) {
  return stem + std::string(kTensors);
}
std::string index_name(const char* stem) {
  return whole_name(stem) + ".index.json";
}
// Numbered as in Hugging Face's libraries: model-00001-of-00002.safetensors.
std::string file_name(const char* stem, FileTurn turn) {
  if (turn.count <= 1) return whole_name(stem);
  char number[32];
  std::snprintf(number, sizeof number, "-%05d-of-%05d", turn.index + 1, turn.count);
  return stem + std::string(number) + std::string(kTensors);
}

// Stores a rank's slices as tensors of a file: each under its tensor's name, and in its shape if it
// is the whole tensor, or the whole of its box, row by row.
Safetensors as_file(const SlicedTensors& share) {
  Safetensors file{.tensors = {}, .metadata = share.metadata};
  for (const auto& [name, tensor] : share.tensors) {
    if (tensor.slices.size() != 1)
      throw InvalidArgument("write_checkpoint: a rank writes one slice of " + shown(name) +
                            ", not " + std::to_string(tensor.slices.size()));
    const auto& [begin, values, box] = tensor.slices[0];
    if (tensor.larger || !fits(box, tensor.sizes))
      throw InvalidArgument("write_checkpoint: the slice of " + shown(name) +
                            " is of a box that is none of it");
    const std::vector<int64_t> shape = shape_of(box, tensor.sizes);
    const bool all = values.numel() == c10::multiply_integers(shape) &&
                     tensor.strides == row_strides(tensor.sizes);
    file.tensors.emplace_back(name, all ? values.view(shape) : values);
  }
  return file;
}

SliceIndex index_of(const SlicedTensors& share, const std::string& file) {
  SliceIndex index;
  index.metadata = share.metadata;
  for (const auto& [name, tensor] : share.tensors) {
    const char* dtype = safetensors_dtype_name(tensor.dtype);
    if (dtype == nullptr)
      throw InvalidArgument("write_checkpoint: tensor '" + name +
                            "' is of a dtype that safetensors lacks");
    index.tensors[name] = {.dtype = dtype,
                           .shape = tensor.sizes,
                           .strides = tensor.strides,
                           .slices = {{.file = file,
                                       .begin = tensor.slices[0].begin,
                                       .end = tensor.slices[0].end(),
                                       .box = tensor.slices[0].box}}};
  }
  return index;
}

// A rank's tensors of a kind: slices or, in the only file, whole tensors, made one after another.
void add_slices_to_write(const SlicedTensors& share, const char* stem, FileTurn turn,
                         std::vector<NamedFile>& files, SliceIndex& index) {
  const std::string file = file_name(stem, turn);
  if (turn.count == 1) {
    std::vector<TensorToCome> tensors;
    for (const auto& [name, tensor] : share.tensors) {
      if (!tensor.complete())
        throw InvalidArgument("write_checkpoint: of " + shown(name) +
                              " only a part is there, and one rank writes all of it");
      tensors.push_back(
          {.name = name, .dtype = tensor.dtype, .sizes = tensor.sizes, .make = [tensor = tensor] {
             return tensor.whole();
           }});
    }
    files.push_back({file, FileToWrite(std::move(tensors), share.metadata)});
  } else if (turn.count > 1) {
    const Safetensors slices = as_file(share);
    files.push_back({file, FileToWrite(slices.tensors, slices.metadata)});
    index = index_of(share, file);
  }
}

// A rank's slices of the model, and its undivided tensors.
SlicedTensors all_in_slices(const Checkpoint& share) {
  SlicedTensors all(share.model);
  for (const auto& [name, tensor] : share.model_slices.tensors) {
    if (!all.tensors.emplace(name, tensor).second)
      throw InvalidArgument("write_checkpoint: the tensor " + shown(name) +
                            " is given whole and in slices");
  }
  all.metadata.insert(share.model_slices.metadata.begin(), share.model_slices.metadata.end());
  return all;
}

// Where all slices are whole tensors, as with stages of a pipeline, the file of each: then the
// index is Hugging Face's. Empty where one is divided.
std::map<std::string, std::string> files_of_whole(const SliceIndex& index) {
  std::map<std::string, std::string> files;
  for (const auto& [name, tensor] : index.tensors) {
    if (tensor.slices.size() != 1 || !tensor.slices[0].box.whole() ||
        tensor.strides != row_strides(tensor.shape))
      return {};
    files[name] = tensor.slices[0].file;
  }
  return files;
}

int64_t bytes_of(const SliceIndex& index) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : index.tensors)
    bytes +=
        numel_of({}, tensor.shape) * static_cast<int64_t>(safetensors_element_size(tensor.dtype));
  return bytes;
}

void check_further_name(const std::string& file) {
  if (!is_plain_file_name(file) || is_own_file(file) || file.ends_with(".partial"))
    throw InvalidArgument("write_checkpoint: '" + file + "' cannot be the name of a further part");
}

}  // namespace

bool is_own_file(std::string_view name) {
  for (const char* file : {kModelSlices, kRanksFile, kTrainerFile, kConfigFile, kChecksumsFile}) {
    if (name == file) return true;
  }
  for (const char* stem : {kModelStem, kOptimizerStem}) {
    if (name == whole_name(stem) || name == index_name(stem)) return true;
    if (name.starts_with(stem + std::string("-")) && name.ends_with(kTensors)) return true;
  }
  return false;
}

std::vector<FileTurn> turns_of(const std::vector<bool>& writes) {
  const auto count = static_cast<int>(std::count(writes.begin(), writes.end(), true));
  std::vector<FileTurn> turns(writes.size(), FileTurn{0, 0});
  if (count == 0) turns.at(0) = {0, 1};
  int next = 0;
  for (size_t r = 0; r < writes.size(); ++r) {
    if (writes[r]) turns[r] = {next++, count};
  }
  return turns;
}

std::string to_json(const WrittenShare& written) {
  return json{{"sums", format_checksums(written.sums)},
              {"model_files", written.model_files},
              {"model_bytes", written.model_bytes},
              {"model", format_slice_index(written.model)},
              {"optimizer", format_slice_index(written.optimizer)}}
      .dump();
}

std::string failure_json(const std::string& message) {
  return json{{kFailure, message}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

WrittenShare written_from_json(const std::string& text, const std::string& source) {
  try {
    const json parsed = json::parse(text);
    if (parsed.contains(kFailure))
      throw CheckpointError(source + ": " + parsed.at(kFailure).get<std::string>());
    WrittenShare written;
    written.sums = parse_checksums(parsed.at("sums").get_ref<const std::string&>(), source);
    parsed.at("model_files").get_to(written.model_files);
    parsed.at("model_bytes").get_to(written.model_bytes);
    for (const auto& [key, index] :
         {std::pair{"model", &written.model}, std::pair{"optimizer", &written.optimizer}})
      *index = parse_slice_index(parsed.at(key).get_ref<const std::string&>(), source);
    return written;
  } catch (const json::exception&) {
    throw CheckpointError(source + ": is not what a rank says of its share");
  }
}

ShareToWrite share_to_write(const Checkpoint& share, FileTurn model, FileTurn optimizer,
                            bool in_slices) {
  ShareToWrite result;
  WrittenShare& written = result.written;
  if (in_slices) {
    add_slices_to_write(all_in_slices(share), kModelStem, model, result.files, written.model);
  } else if (model.count > 0) {
    const std::string file = file_name(kModelStem, model);
    // Refuses invalid data before any rank counts it.
    result.files.push_back({file, FileToWrite(share.model.tensors, share.model.metadata)});
    for (const auto& [name, tensor] : share.model.tensors) {
      if (model.count > 1) written.model_files[name] = file;
      written.model_bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  add_slices_to_write(share.optimizer, kOptimizerStem, optimizer, result.files, written.optimizer);
  return result;
}

void add_further_tensors(const Checkpoint& share, ShareToWrite& own) {
  for (const auto& [name, part] : share.tensors) {
    const std::string file = name + std::string(kTensors);
    check_further_name(file);
    own.files.push_back({file, FileToWrite(part.tensors, part.metadata)});
  }
}

FileSums FilesUnderWay::write(const std::vector<NamedFile>& files) {
  const size_t first = open_.size();
  for (const NamedFile& file : files) open(file.name).allocate(file.contents.bytes());
  FileSums sums;
  for (size_t i = 0; i < files.size(); ++i)
    sums[files[i].name] = files[i].contents.write(*open_[first + i]);
  return sums;
}

FileSum FilesUnderWay::write(const std::string& name, const std::string& text) {
  open(name).write(text);
  return checksum_of(text.data(), text.size());
}

void FilesUnderWay::commit() {
  commit_together(open_);
  open_.clear();
}

AsideFile& FilesUnderWay::open(const std::string& name) {
  return *open_.emplace_back(std::make_unique<AsideFile>(directory_ / name));
}

WrittenShare write_share(FilesUnderWay& files, const ShareToWrite& share) {
  WrittenShare written = share.written;
  written.sums = files.write(share.files);
  return written;
}

void check_further_names(const Checkpoint& checkpoint) {
  for (const auto& [name, tensors] : checkpoint.tensors)
    check_further_name(name + std::string(kTensors));
  for (const auto& [name, text] : checkpoint.files) {
    check_further_name(name);
    if (name.ends_with(kTensors))
      throw InvalidArgument("write_checkpoint: give " + name + " as tensors, not as a file");
  }
}

RestToWrite rest_to_write(const Checkpoint& checkpoint) {
  RestToWrite rest;
  rest.files.push_back(
      {kRanksFile, FileToWrite(checkpoint.ranks.tensors, checkpoint.ranks.metadata)});
  for (const auto& [name, part] : checkpoint.tensors)
    rest.files.push_back({name + std::string(kTensors), FileToWrite(part.tensors, part.metadata)});
  rest.texts = checkpoint.files;
  rest.texts[kTrainerFile] = checkpoint.trainer_json;
  rest.texts[kConfigFile] = checkpoint.config_json;
  rest.model = checkpoint.model.metadata;
  rest.model.insert(checkpoint.model_slices.metadata.begin(),
                    checkpoint.model_slices.metadata.end());
  rest.optimizer = checkpoint.optimizer.metadata;
  return rest;
}

void write_rest(FilesUnderWay& files, const RestToWrite& rest,
                const std::vector<WrittenShare>& written) {
  const std::string source = "write_checkpoint";
  FileSums sums;
  const auto add_sums = [&](const FileSums& more) {
    for (const auto& [name, sum] : more)
      if (!sums.emplace(name, sum).second)
        throw CheckpointError(source + ": two ranks write the file " + shown(name));
  };
  SliceIndex model, optimizer;
  model.metadata = rest.model;
  optimizer.metadata = rest.optimizer;
  std::map<std::string, std::string> model_files;
  int64_t model_bytes = 0;
  for (const WrittenShare& share : written) {
    add_sums(share.sums);
    for (const auto& [name, file] : share.model_files) {
      if (!model_files.emplace(name, file).second)
        throw CheckpointError(source + ": two ranks write the tensor " + shown(name));
    }
    model_bytes += share.model_bytes;
    add_slices(model, share.model, source);
    add_slices(optimizer, share.optimizer, source);
  }
  check_whole(model, source);
  check_whole(optimizer, source);
  if (const auto files_of = files_of_whole(model); !files_of.empty()) {
    model_files = files_of;
    model_bytes = bytes_of(model);
    model.tensors.clear();
  }
  add_sums(files.write(rest.files));
  const auto add = [&](const std::string& name, const std::string& text) {
    sums[name] = files.write(name, text);
  };
  for (const auto& [name, text] : rest.texts) add(name, text);
  if (!model_files.empty()) {
    const json index{{"metadata", {{"total_size", model_bytes}}}, {"weight_map", model_files}};
    add(index_name(kModelStem), index.dump(2) + "\n");
  }
  for (const auto& [index, name] : {std::pair{&model, std::string(kModelSlices)},
                                    std::pair{&optimizer, index_name(kOptimizerStem)}}) {
    if (index->tensors.empty()) continue;
    const std::string text = format_slice_index(*index);
    if (text.size() > kLargestSmallFile)
      throw CheckpointError(source +
                            ": so many files and tensors have an index that no reader would "
                            "read; write fewer files");
    add(name, text);
  }
  files.write(kChecksumsFile, format_checksums(sums));
}

void write_alone(const fs::path& directory, const Checkpoint& checkpoint) {
  FilesUnderWay files(directory);
  const WrittenShare written = write_share(
      files, share_to_write(checkpoint, {}, {}, !checkpoint.model_slices.tensors.empty()));
  write_rest(files, rest_to_write(checkpoint), {written});
  files.commit();
}

}  // namespace lockstep::inline v0::internal
