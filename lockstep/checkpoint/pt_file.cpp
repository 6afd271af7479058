#include "lockstep/checkpoint/pt_file.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/pt_contents.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

at::ScalarType pt_dtype(const std::string& word) {
  if (word == "C128") return at::kComplexDouble;
  return safetensors_dtype(word).value();  // pt_contents.h has no other dtypes
}

// Makes the tensors of one file; tensors of one storage share it.
class StorageMapper {
 public:
  explicit StorageMapper(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}

  at::Tensor tensor(const PtTensor& tensor) {
    const at::ScalarType dtype = pt_dtype(tensor.dtype);
    const auto& sizes = tensor.sizes;
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end())
      return at::empty(sizes, at::TensorOptions().dtype(dtype));
    at::Tensor& storage = storages_[{tensor.storage_begin, dtype}];
    if (!storage.defined()) {
      storage = mapped_tensor(file_, tensor.storage_begin,
                              {static_cast<int64_t>(tensor.storage_size)}, dtype, tensor.name);
    }
    return at::as_strided(storage, sizes, tensor.strides, static_cast<int64_t>(tensor.offset));
  }

 private:
  std::shared_ptr<MappedFile> file_;
  std::map<std::pair<uint64_t, at::ScalarType>, at::Tensor> storages_;
};

}  // namespace

PtFile read_pt(const std::filesystem::path& path, const std::optional<FileSum>& expected) {
  const std::shared_ptr<MappedFile> file = MappedFile::open(path);
  if (expected) {
    file->read_ahead();
    check_sum(checksum_of(file->bytes().data(), file->bytes().size()), *expected, file->name());
  }
  PtContents contents = parse_pt(file->bytes(), file->name());
  StorageMapper storages(file);
  PtFile result{.contents = {.tensors = {}, .metadata = std::move(contents.metadata)},
                .left_out = std::move(contents.left_out),
                .found_in = std::move(contents.found_in)};
  for (const PtTensor& tensor : contents.tensors)
    result.contents.tensors.emplace_back(tensor.name, storages.tensor(tensor));
  return result;
}

}  // namespace lockstep::inline v0
