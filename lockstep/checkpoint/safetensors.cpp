#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian data");

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{at::kBool, "BOOL"},
                                 {at::kByte, "U8"},
                                 {at::kChar, "I8"},
                                 {at::kShort, "I16"},
                                 {at::kInt, "I32"},
                                 {at::kLong, "I64"},
                                 {at::kHalf, "F16"},
                                 {at::kBFloat16, "BF16"},
                                 {at::kFloat, "F32"},
                                 {at::kDouble, "F64"},
                                 {at::kUInt16, "U16"},
                                 {at::kUInt32, "U32"},
                                 {at::kUInt64, "U64"},
                                 {at::kFloat8_e4m3fn, "F8_E4M3"},
                                 {at::kFloat8_e5m2, "F8_E5M2"},
                                 {at::kComplexFloat, "C64"}};

const char* name_of(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return nullptr;
}

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  for (const DtypeName& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

void read_exactly(int fd, void* data, size_t size, off_t offset, const std::string& file) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(fd, next, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError(system_error("cannot read " + file, errno).what());
    if (got == 0) throw CheckpointError(file + ": became shorter while it was read");
    next += got;
    offset += got;
    size -= static_cast<size_t>(got);
  }
}

}  // namespace

const at::Tensor* Safetensors::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  return it != tensors.end() && it->first == name ? &it->second : nullptr;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  std::vector<const std::pair<std::string, at::Tensor>*> order;
  for (const auto& entry : tensors) {
    if (entry.first.empty() || entry.first == "__metadata__") {
      throw InvalidArgument("write_safetensors: '" + entry.first +
                            "' cannot be the name of a tensor");
    }
    if (!entry.second.defined() || entry.second.layout() != at::kStrided ||
        name_of(entry.second.scalar_type()) == nullptr) {
      throw InvalidArgument("write_safetensors: tensor '" + entry.first +
                            "' is undefined, sparse or of a dtype that safetensors lacks");
    }
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const auto size_a = a->second.element_size(), size_b = b->second.element_size();
    return size_a != size_b ? size_a > size_b : a->first < b->first;
  });

  SafetensorsHeader header;
  header.metadata = metadata;
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const auto* entry : order) {
    if (!names.insert(entry->first).second) {
      throw InvalidArgument("write_safetensors: two tensors have the name '" + entry->first + "'");
    }
    const uint64_t bytes =
        static_cast<uint64_t>(entry->second.numel()) * entry->second.element_size();
    header.entries.push_back({.name = entry->first,
                              .dtype = name_of(entry->second.scalar_type()),
                              .shape = entry->second.sizes().vec(),
                              .begin = offset,
                              .end = offset + bytes});
    offset += bytes;
  }
  const std::string json = format_safetensors_header(header);

  AsideFile file(path);
  const uint64_t length = json.size();
  file.write(&length, sizeof length);
  file.write(json);
  for (const auto* entry : order) {
    const at::Tensor data = entry->second.detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(data.const_data_ptr(), data.nbytes());
  }
  file.commit();
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  const std::string name = path.string();
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw CheckpointError(system_error("cannot open " + name, errno).what());
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0)
    throw CheckpointError(system_error("cannot read " + name, errno).what());
  if (!S_ISREG(info.st_mode))
    throw CheckpointError(name + ": not a file; give the path of a .safetensors file");
  const auto file_size = static_cast<uint64_t>(info.st_size);
  uint64_t header_size = 0;
  if (file_size < sizeof header_size)
    throw CheckpointError(name + ": too short to be a safetensors file");
  read_exactly(fd.get(), &header_size, sizeof header_size, 0, name);
  if (header_size > kMaxSafetensorsHeader || header_size > file_size - sizeof header_size) {
    throw CheckpointError(name + ": its header claims " + std::to_string(header_size) +
                          " bytes of " + std::to_string(file_size) +
                          "; the file is truncated or not safetensors");
  }
  std::string json(header_size, '\0');
  read_exactly(fd.get(), json.data(), json.size(), sizeof header_size, name);
  const uint64_t data_start = sizeof header_size + header_size;
  SafetensorsHeader header = parse_safetensors_header(json, file_size - data_start, name);

  Safetensors result;
  result.metadata = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) {
    const auto dtype = dtype_of(entry.dtype);
    if (!dtype)
      throw CheckpointError(name + ": tensor '" + entry.name + "' has the unsupported dtype " +
                            entry.dtype);
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(*dtype));
    read_exactly(fd.get(), tensor.mutable_data_ptr(), tensor.nbytes(),
                 static_cast<off_t>(data_start + entry.begin), name);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return result;
}

}  // namespace lockstep
