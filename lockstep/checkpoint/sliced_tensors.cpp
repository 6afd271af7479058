#include "lockstep/checkpoint/sliced_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

// The elements in their memory order.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

// From this size on libtorch copies with several threads.
constexpr size_t kLongRun = 1 << 20;

void copy_run(const at::Tensor& to, int64_t to_begin, const at::Tensor& from, int64_t from_begin,
              int64_t length) {
  const auto size = static_cast<size_t>(from.element_size());
  const size_t bytes = static_cast<size_t>(length) * size;
  const bool same = to.scalar_type() == from.scalar_type() && to.is_cpu() && from.is_cpu();
  if (!same || bytes >= kLongRun) {
    to.narrow(0, to_begin, length).copy_(from.narrow(0, from_begin, length));
    return;
  }
  std::memcpy(
      static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(to_begin) * size,
      static_cast<const char*>(from.const_data_ptr()) + static_cast<size_t>(from_begin) * size,
      bytes);
}

// `inner`, a box of a tensor with the shape of `outer`, as a box of the tensor that contains
// `outer`.
TensorBox within(const TensorBox& outer, const TensorBox& inner) {
  if (inner.whole()) return outer;
  TensorBox box = inner;
  for (size_t i = 0; i < outer.begin.size(); ++i) {
    box.begin[i] += outer.begin[i];
    box.end[i] += outer.begin[i];
  }
  return box;
}

BoxRange range_of(const TensorSlice& slice) {
  return {slice.box, slice.begin, slice.end()};
}

}  // namespace

int64_t SlicedTensor::numel() const {
  return c10::multiply_integers(sizes);
}

bool SlicedTensor::complete() const {
  std::vector<BoxRange> ranges;
  for (const TensorSlice& slice : slices) ranges.push_back(range_of(slice));
  return why_not_whole(larger ? larger->sizes : sizes, std::move(ranges)).empty();
}

void SlicedTensor::read(const TensorBox& box, int64_t begin, const at::Tensor& out) const {
  const int64_t end = begin + out.numel();
  const auto refuse = [&](int64_t from) {
    throw InvalidArgument("a slice of elements " + std::to_string(begin) + " to " +
                          std::to_string(end) + " is not there from " + std::to_string(from) +
                          " on");
  };
  if (!fits(box, sizes)) throw InvalidArgument("the box [" + to_string(box) + "] is none of it");
  const int64_t numel = numel_of(box, sizes);
  if (begin < 0 || end > numel) refuse(begin < 0 ? begin : std::max(begin, numel));
  if (begin == end) return;
  const std::vector<int64_t>& shape = larger ? larger->sizes : sizes;
  const std::vector<int64_t>& order = larger ? larger->strides : strides;
  const BoxRange wanted{in_one_form(within(larger ? larger->box : TensorBox{}, box), shape), begin,
                        end};
  int64_t found = 0;
  for (const TensorSlice& slice : slices) {
    for_each_run(shape, order, wanted, range_of(slice), [&](int64_t to, int64_t from, int64_t n) {
      copy_run(out, to, slice.values, from, n);
      found += n;
    });
    if (found == out.numel()) return;
  }
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const TensorSlice& slice : slices)
    for_each_run(shape, order, wanted, range_of(slice),
                 [&](int64_t to, int64_t, int64_t n) { runs.emplace_back(to, to + n); });
  std::sort(runs.begin(), runs.end());
  int64_t next = 0;
  for (const auto& [from, to] : runs)
    if (from <= next) next = std::max(next, to);
  refuse(begin + next);
}

at::Tensor SlicedTensor::whole() const {
  for (const TensorSlice& slice : slices) {
    const bool all = larger ? slice.box == larger->box : slice.box.whole();
    if (all && slice.values.numel() == numel())
      return slice.values.as_strided(sizes, strides, slice.values.storage_offset());
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
                      const at::Tensor& values, TensorBox box) {
  return {.dtype = values.scalar_type(),
          .sizes = sizes.vec(),
          .strides = strides.vec(),
          .slices = {{begin, values, std::move(box)}}};
}

SlicedTensor box_of(SlicedTensor tensor, const TensorBox& box) {
  if (tensor.larger || !fits(box, tensor.sizes))
    throw InvalidArgument("the box [" + to_string(box) + "] is none of a tensor of [" +
                          joined(tensor.sizes) + "]");
  const TensorBox part = in_one_form(box, tensor.sizes);
  if (part.whole()) return tensor;
  tensor.larger = {std::move(tensor.sizes), std::move(tensor.strides), part};
  tensor.sizes = shape_of(part, tensor.larger->sizes);
  tensor.strides = dense_strides(tensor.sizes, tensor.larger->strides);
  return tensor;
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
    // Its error names the missing file.
    return read_safetensors(directory / whole, find_sum(sums, whole));
  }
  return read_slices(directory, index_name, sums);
}

SlicedTensors read_slices(const fs::path& directory, const std::string& index_name,
                          const FileSums& sums) {
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
      into.slices.push_back({slice.begin, values->view({-1}), slice.box});
    }
  }
  return result;
}

}  // namespace lockstep::inline v0
