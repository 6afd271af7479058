#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

// A file under way and the checksum of what was written to it.
class SummedFile {
 public:
  SummedFile(const std::filesystem::path& path, uint64_t size) : file_(path) {
    if (size >= kPiece) file_.reserve(size);
  }

  void write(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const size_t piece = std::min(size, kPiece - pending_.size());
      if (piece == kPiece)
        put(next, piece);
      else
        pending_.append(next, piece);
      if (pending_.size() == kPiece) flush();
      next += piece;
      size -= piece;
    }
  }
  FileSum commit() {
    flush();
    file_.commit();
    return sum_.sum();
  }

 private:
  // What is hashed stays in the processor's cache until it is written. And pieces that begin at
  // multiples of their size let the kernel keep the file in large pages, which is half the cost of
  // writing it, and most of that of mapping it.
  static constexpr size_t kPiece = 256 << 10;

  void put(const char* data, size_t size) {
    sum_.update(data, size);
    file_.write(data, size);
  }
  void flush() {
    put(pending_.data(), pending_.size());
    pending_.clear();
  }

  AsideFile file_;
  Checksum sum_;
  std::string pending_;  // the end of the file, less than a piece
};

// The tensors in the order of the file. Throws for those that cannot be written.
std::vector<const TensorToCome*> in_file_order(const std::vector<TensorToCome>& tensors) {
  std::vector<const TensorToCome*> order;
  std::set<std::string_view> names;
  for (const TensorToCome& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      throw InvalidArgument("write_safetensors: '" + tensor.name +
                            "' cannot be the name of a tensor");
    }
    if (safetensors_dtype_name(tensor.dtype) == nullptr) {
      throw InvalidArgument("write_safetensors: tensor '" + tensor.name +
                            "' is undefined, sparse or of a dtype that safetensors lacks");
    }
    if (!names.insert(tensor.name).second)
      throw InvalidArgument("write_safetensors: two tensors have the name '" + tensor.name + "'");
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorToCome* a, const TensorToCome* b) {
    const auto size_a = c10::elementSize(a->dtype), size_b = c10::elementSize(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  return order;
}

SafetensorsHeader header_of(const std::vector<const TensorToCome*>& order,
                            const Metadata& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t offset = 0;
  for (const TensorToCome* tensor : order) {
    const uint64_t bytes = static_cast<uint64_t>(c10::multiply_integers(tensor->sizes)) *
                           c10::elementSize(tensor->dtype);
    header.entries.push_back({.name = tensor->name,
                              .dtype = safetensors_dtype_name(tensor->dtype),
                              .shape = tensor->sizes,
                              .begin = offset,
                              .end = offset + bytes});
    offset += bytes;
  }
  return header;
}

// The header of the mapped file and where the data starts.
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

FileSum write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                          const Metadata& metadata) {
  std::vector<TensorToCome> list;
  for (const auto& [name, tensor] : tensors) {
    const bool strided = tensor.defined() && tensor.layout() == at::kStrided;
    list.push_back({.name = name,
                    .dtype = strided ? tensor.scalar_type() : at::ScalarType::Undefined,
                    .sizes = strided ? tensor.sizes().vec() : std::vector<int64_t>{},
                    .make = [&tensor = tensor] { return tensor; }});
  }
  return stream_safetensors(path, list, metadata);
}

FileSum stream_safetensors(const std::filesystem::path& path,
                           const std::vector<TensorToCome>& tensors, const Metadata& metadata) {
  const auto order = in_file_order(tensors);
  const SafetensorsHeader header = header_of(order, metadata);
  const std::string json = format_safetensors_header(header);
  const uint64_t length = json.size();
  const uint64_t data_size = header.entries.empty() ? 0 : header.entries.back().end;
  SummedFile file(path, sizeof length + length + data_size);
  file.write(&length, sizeof length);
  file.write(json.data(), json.size());
  for (const TensorToCome* tensor : order) {
    const at::Tensor data = tensor->make().detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(data.const_data_ptr(), data.nbytes());
  }
  return file.commit();
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

}  // namespace lockstep
