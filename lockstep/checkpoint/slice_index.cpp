#include "lockstep/checkpoint/slice_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;

constexpr size_t kMostDimensions = 64;

// The number of elements; nullopt for a negative size, or if the strides alone would be too large.
std::optional<int64_t> count(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel))
      return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : numel;
}

int64_t whole_number(const json& value) {
  if (!value.is_number_integer()) throw json::type_error::create(302, "not a whole number", &value);
  return value.get<int64_t>();
}

std::vector<int64_t> whole_numbers(const json& values) {
  std::vector<int64_t> result;
  for (const json& value : values.get_ref<const json::array_t&>())
    result.push_back(whole_number(value));
  return result;
}

// Whether the strides describe elements that are contiguous in some order.
bool without_holes(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (strides.size() != shape.size()) return false;
  for (const int64_t stride : strides) {
    if (stride < 0) return false;
  }
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t next = 1;
  for (const size_t i : order) {
    if (shape[i] == 1) continue;
    if (strides[i] != next) return false;
    next *= shape[i];
  }
  return true;
}

IndexedTensor parse_tensor(const json& from, const std::string& where) {
  IndexedTensor tensor;
  from.at("dtype").get_to(tensor.dtype);
  tensor.shape = whole_numbers(from.at("shape"));
  const std::optional<int64_t> numel = count(tensor.shape);
  if (!numel || tensor.shape.size() > kMostDimensions ||
      safetensors_element_size(tensor.dtype) == 0)
    throw CheckpointError(where + " has a shape or a dtype that cannot be");
  tensor.strides = row_strides(tensor.shape);
  if (from.contains("strides")) {
    std::vector<int64_t> strides = whole_numbers(from.at("strides"));
    const bool dense =
        *numel > 0 ? without_holes(tensor.shape, strides) : strides.size() == tensor.shape.size();
    if (!dense) throw CheckpointError(where + " has strides that leave holes");
    if (*numel > 0) tensor.strides = std::move(strides);
  }
  for (const json& each : from.at("slices")) {
    IndexedSlice slice{.file = each.at("file").get<std::string>(),
                       .begin = whole_number(each.at("begin")),
                       .end = whole_number(each.at("end"))};
    if (!is_plain_file_name(slice.file))
      throw CheckpointError(where + " names a file outside its directory");
    if (each.contains("box")) {
      auto box = parse_box(each.at("box").get_ref<const std::string&>());
      if (!box || box->whole() || !fits(*box, tensor.shape))
        throw CheckpointError(where + " has a slice of a box that is none of it");
      slice.box = in_one_form(std::move(*box), tensor.shape);
    }
    const int64_t most = slice.box.whole() ? *numel : numel_of(slice.box, tensor.shape);
    if (slice.begin < 0 || slice.end < slice.begin || slice.end > most)
      throw CheckpointError(where + " has a slice beyond its ends");
    tensor.slices.push_back(std::move(slice));
  }
  return tensor;
}

void sort_slices(std::vector<IndexedSlice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const IndexedSlice& a, const IndexedSlice& b) {
    if (a.box != b.box) return a.box < b.box;
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
}

}  // namespace

void add_slices(SliceIndex& index, const SliceIndex& part, const std::string& source) {
  for (const auto& [name, tensor] : part.tensors) {
    const auto [place, fresh] = index.tensors.try_emplace(name, tensor);
    if (fresh) continue;
    IndexedTensor& whole = place->second;
    if (whole.dtype != tensor.dtype || whole.shape != tensor.shape ||
        whole.strides != tensor.strides)
      throw CheckpointError(source + ": ranks disagree about the shape or dtype of " + shown(name));
    whole.slices.insert(whole.slices.end(), tensor.slices.begin(), tensor.slices.end());
    sort_slices(whole.slices);
  }
}

void check_whole(const SliceIndex& index, const std::string& source) {
  for (const auto& [name, tensor] : index.tensors) {
    std::vector<BoxRange> ranges;
    for (const IndexedSlice& slice : tensor.slices)
      ranges.push_back({slice.box, slice.begin, slice.end});
    const std::string wrong = why_not_whole(tensor.shape, std::move(ranges));
    if (!wrong.empty())
      throw CheckpointError(source + ": the slices of " + shown(name) +
                            " do not make it up: " + wrong);
  }
}

std::string format_slice_index(const SliceIndex& index) {
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    json& into = tensors[name];
    into["dtype"] = tensor.dtype;
    into["shape"] = tensor.shape;
    if (tensor.strides != row_strides(tensor.shape)) into["strides"] = tensor.strides;
    json& slices = into["slices"] = json::array();
    for (const IndexedSlice& slice : tensor.slices) {
      slices.push_back({{"file", slice.file}, {"begin", slice.begin}, {"end", slice.end}});
      if (!slice.box.whole()) slices.back()["box"] = to_string(slice.box);
    }
  }
  return json{{"metadata", index.metadata}, {"tensors", tensors}}.dump(1) + "\n";
}

SliceIndex parse_slice_index(std::string_view text, const std::string& source) {
  SliceIndex index;
  try {
    const json parsed = json::parse(text);
    parsed.at("metadata").get_to(index.metadata);
    for (const auto& [name, tensor] : parsed.at("tensors").get_ref<const json::object_t&>()) {
      IndexedTensor& into = index.tensors[name];
      into = parse_tensor(tensor, source + ": " + shown(name));
      sort_slices(into.slices);
    }
  } catch (const json::exception&) {
    throw CheckpointError(source + ": is not an index of slices; it is damaged");
  }
  return index;
}

}  // namespace lockstep::inline v0
