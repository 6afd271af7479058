#include "lockstep/checkpoint/sliced_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>
#include <set>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

// The elements as they lie in memory.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace

int64_t SlicedTensor::numel() const {
  return c10::multiply_integers(sizes);
}

bool SlicedTensor::complete() const {
  int64_t next = 0;
  for (const TensorSlice& slice : slices) {
    if (slice.begin != next) return false;
    next = slice.end();
  }
  return next == numel();
}

void SlicedTensor::read(int64_t begin, const at::Tensor& out) const {
  const int64_t end = begin + out.numel();
  int64_t next = begin;
  for (const TensorSlice& slice : slices) {
    if (next == end) break;
    if (slice.end() <= next) continue;
    if (slice.begin > next) break;
    const int64_t length = std::min(slice.end(), end) - next;
    out.narrow(0, next - begin, length).copy_(slice.values.narrow(0, next - slice.begin, length));
    next += length;
  }
  if (next != end)
    throw InvalidArgument("a slice of elements " + std::to_string(begin) + " to " +
                          std::to_string(end) + " is not there from " + std::to_string(next) +
                          " on");
}

at::Tensor SlicedTensor::whole() const {
  if (slices.size() == 1 && slices[0].values.numel() == numel()) {
    const at::Tensor& values = slices[0].values;
    return values.as_strided(sizes, strides, values.storage_offset());
  }
  at::Tensor tensor = at::empty_strided(sizes, strides, dtype);
  read(0, in_memory_order(tensor));
  return tensor;
}

std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> stored_parts(
    SlicedTensors tensors, const NamedTensors& parameters, std::string source) {
  for (const auto& [name, parameter] : parameters) {
    const SlicedTensor* const found = tensors.find(name);
    if (found == nullptr) throw CheckpointError(source + ": has no tensor '" + name + "'");
    if (parameter.sizes() != at::IntArrayRef(found->sizes))
      throw CheckpointError(source + ": '" + name + "' has shape [" + joined(found->sizes) +
                            "], the model's [" + joined(parameter.sizes()) + "]");
    if (parameter.strides() != at::IntArrayRef(found->strides) && parameter.numel() > 1)
      throw CheckpointError(source + ": '" + name +
                            "' lies in another order in memory than the model's; load it whole");
  }
  return [tensors = std::move(tensors), source = std::move(source)](
             const std::string& name, int64_t begin, const at::Tensor& part) {
    const SlicedTensor* const found = tensors.find(name);
    if (found == nullptr) throw CheckpointError(source + ": has no tensor '" + name + "'");
    if (begin + part.numel() > found->numel())
      throw InvalidArgument("stored_parts: '" + name + "' has " + std::to_string(found->numel()) +
                            " elements");
    const at::NoGradGuard no_grad;
    if (found->dtype == part.scalar_type()) {
      found->read(begin, part);
      return;
    }
    const at::Tensor values = at::empty(part.sizes(), part.options().dtype(found->dtype));
    found->read(begin, values);
    part.copy_(values);
  };
}

SlicedTensor slice_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t begin,
                      const at::Tensor& values) {
  return {.dtype = values.scalar_type(),
          .sizes = sizes.vec(),
          .strides = strides.vec(),
          .slices = {{begin, values}}};
}

SlicedTensors::SlicedTensors(const Safetensors& given) : metadata(given.metadata) {
  for (const auto& [name, tensor] : given.tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided)
      throw InvalidArgument("tensor '" + name + "' is undefined or sparse");
    const at::Tensor dense =
        tensor.is_non_overlapping_and_dense() ? tensor.detach() : tensor.detach().contiguous();
    const bool fresh =
        tensors
            .try_emplace(name, slice_of(dense.sizes(), dense.strides(), 0, in_memory_order(dense)))
            .second;
    if (!fresh) throw InvalidArgument("two tensors have the name '" + name + "'");
  }
}

const SlicedTensor* SlicedTensors::find(std::string_view name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

Safetensors SlicedTensors::whole() const {
  Safetensors result{.tensors = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) result.tensors.emplace_back(name, tensor.whole());
  return result;
}

int64_t SlicedTensors::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    for (const TensorSlice& slice : tensor.slices)
      bytes += static_cast<int64_t>(slice.values.nbytes());
  }
  return bytes;
}

SlicedTensors read_sliced(const fs::path& directory, const std::string& stem,
                          const FileSums& sums) {
  const std::string whole = stem + ".safetensors", index_name = whole + ".index.json";
  if (fs::exists(directory / whole)) {
    check_listed(sums, whole, directory.string());
    return read_safetensors(directory / whole, find_sum(sums, whole));
  }
  if (!fs::exists(directory / index_name)) {
    if (find_sum(sums, index_name))
      throw CheckpointError((directory / index_name).string() + ": is missing");
    return read_safetensors(directory / whole, find_sum(sums, whole));  // names what is missing
  }
  const std::string source = (directory / index_name).string();
  const std::string text = read_small_file(directory / index_name);
  if (const auto sum = find_sum(sums, index_name))
    check_sum(checksum_of(text.data(), text.size()), *sum, source);
  const SliceIndex index = parse_slice_index(text, source);
  check_whole(index, source);
  std::map<std::string, Safetensors> files;
  for (const auto& [name, tensor] : index.tensors) {
    for (const IndexedSlice& slice : tensor.slices) files.try_emplace(slice.file);
  }
  for (auto& [file, contents] : files)
    contents = read_safetensors(directory / file, find_sum(sums, file));
  SlicedTensors result;
  result.metadata = index.metadata;
  for (const auto& [name, tensor] : index.tensors) {
    const auto dtype = safetensors_dtype(tensor.dtype);
    if (!dtype)
      throw CheckpointError(source + ": tensor '" + name + "' has the unsupported dtype " +
                            tensor.dtype);
    SlicedTensor& into = result.tensors[name];
    into = {.dtype = *dtype, .sizes = tensor.shape, .strides = tensor.strides, .slices = {}};
    for (const IndexedSlice& slice : tensor.slices) {
      const at::Tensor* values = files[slice.file].find(name);
      if (values == nullptr || values->numel() != slice.end - slice.begin ||
          values->scalar_type() != *dtype)
        throw CheckpointError((directory / slice.file).string() + ": lacks the slice of '" + name +
                              "' that " + index_name + " promises");
      into.slices.push_back({slice.begin, values->view({-1})});
    }
  }
  return result;
}

}  // namespace lockstep
