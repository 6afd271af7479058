#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "lockstep/checkpoint/internal/file_to_write.h"
#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

// The mapped file's header, and the offset of the data.
std::pair<SafetensorsHeader, uint64_t> mapped_header(const MappedFile& file) {
  const std::string& name = file.name();
  const uint64_t file_size = file.bytes().size();
  uint64_t header_size = 0;
  if (file_size < sizeof header_size)
    throw CheckpointError(name + ": too short to be a safetensors file");
  std::memcpy(&header_size, file.bytes().data(), sizeof header_size);
  if (header_size > kMaxSafetensorsHeader || header_size > file_size - sizeof header_size) {
    throw CheckpointError(name + ": its header claims " + std::to_string(header_size) +
                          " bytes of " + std::to_string(file_size) +
                          "; the file is truncated or not safetensors");
  }
  const uint64_t data_start = sizeof header_size + header_size;
  const std::string_view json(
      reinterpret_cast<const char*>(file.bytes().data()) + sizeof header_size, header_size);
  return {parse_safetensors_header(json, file_size - data_start, name), data_start};
}

}  // namespace

const at::Tensor* Safetensors::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  return it != tensors.end() && it->first == name ? &it->second : nullptr;
}

namespace {

FileSum write_alone(const std::filesystem::path& path, const internal::FileToWrite& contents) {
  AsideFile file(path);
  file.allocate(contents.bytes());
  const FileSum sum = contents.write(file);
  file.commit();
  return sum;
}

}  // namespace

FileSum write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                          const Metadata& metadata) {
  return write_alone(path, internal::FileToWrite(tensors, metadata));
}

FileSum stream_safetensors(const std::filesystem::path& path,
                           const std::vector<TensorToCome>& tensors, const Metadata& metadata) {
  return write_alone(path, internal::FileToWrite(tensors, metadata));
}

Safetensors read_safetensors(const std::filesystem::path& path,
                             const std::optional<FileSum>& expected) {
  const std::shared_ptr<MappedFile> file = MappedFile::open(path);
  if (expected) {
    if (file->bytes().size() != expected->bytes)
      check_sum({file->bytes().size(), 0}, *expected, file->name());
    file->read_ahead();
    check_sum(checksum_of(file->bytes().data(), file->bytes().size()), *expected, file->name());
  }
  auto [header, data_start] = mapped_header(*file);
  Safetensors result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    const auto dtype = safetensors_dtype(entry.dtype);
    if (!dtype)
      throw CheckpointError(file->name() + ": tensor '" + entry.name +
                            "' has the unsupported dtype " + entry.dtype);
    at::Tensor tensor =
        mapped_tensor(file, data_start + entry.begin, entry.shape, *dtype, entry.name);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  sort_by_name(&result.tensors);
  return result;
}

void sort_by_name(NamedTensors* tensors) {
  std::sort(tensors->begin(), tensors->end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace lockstep::inline v0
