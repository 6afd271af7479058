#include "lockstep/checkpoint/divided_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

std::string bracketed(at::IntArrayRef sizes) {
  return "[" + joined(sizes) + "]";
}

const PlacedParameter& place_of(const PlacedParameters& places, const std::string& name) {
  const auto found = places.find(name);
  if (found == places.end())
    throw InvalidArgument("the parameter " + shown(name) + " has no place in the whole model");
  if (!fits(found->second.box, found->second.shape))
    throw InvalidArgument("the place of " + shown(name) + " is [" + to_string(found->second.box) +
                          "], which " + bracketed(found->second.shape) + " has not");
  return found->second;
}

void check_shape(const std::string& name, at::IntArrayRef sizes, const PlacedParameter& place) {
  const std::vector<int64_t> expected = shape_of(place.box, place.shape);
  if (sizes != at::IntArrayRef(expected))
    throw InvalidArgument("the parameter " + shown(name) + " is " + bracketed(sizes) +
                          ", and its place has " + bracketed(expected));
}

// Whether this rank writes the data that a parameter has once, whatever its boxes.
bool writes_numbers(const PlacedParameter& place) {
  return place.writes && std::all_of(place.box.begin.begin(), place.box.begin.end(),
                                     [](int64_t begin) { return begin == 0; });
}

// Turns a tensor of the part's shape, or a slice of one, into a slice of the whole.
SlicedTensor lifted(SlicedTensor part, const PlacedParameter& place) {
  const TensorBox box = in_one_form(place.box, place.shape);
  if (box.whole()) return part;
  // Dims of size 1 may have any stride; they are stored by rows if possible.
  const bool by_rows = part.strides == row_strides(part.sizes);
  part.strides = by_rows ? row_strides(place.shape) : dense_strides(place.shape, part.strides);
  part.sizes = place.shape;
  for (TensorSlice& slice : part.slices) slice.box = box;
  return part;
}

std::string before_last_point(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

// Keeps in each group the parameters that `keep` selects.
void keep_listed(Metadata& metadata, const std::function<bool(const std::string&)>& keep) {
  for (size_t g = 0;; ++g) {
    const auto entry = metadata.find("group." + std::to_string(g));
    if (entry == metadata.end()) return;
    auto options = nlohmann::json::parse(entry->second);
    auto names = options.at("parameters").get<std::vector<std::string>>();
    std::erase_if(names, [&](const std::string& name) { return !keep(name); });
    options["parameters"] = names;
    entry->second = options.dump();
  }
}

SlicedTensor stored_box(const SlicedTensor& stored, const std::string& name,
                        const PlacedParameter& place, const std::string& source) {
  if (stored.sizes != place.shape)
    throw CheckpointError(source + ": " + shown(name) + " has shape " + bracketed(stored.sizes) +
                          ", the model's " + bracketed(place.shape));
  return box_of(stored, place.box);
}

bool is_number(const SlicedTensor& tensor) {
  return tensor.sizes.empty();
}

}  // namespace

PlacedParameters dealt(PlacedParameters places, int replica, int replicas) {
  if (replica < 0 || replica >= replicas)
    throw InvalidArgument("replica " + std::to_string(replica) + " of " + std::to_string(replicas));
  std::vector<int64_t> elements(static_cast<size_t>(replicas), 0);
  for (auto& [name, place] : places) {
    if (!place.writes) continue;
    const auto least = std::min_element(elements.begin(), elements.end());
    *least += numel_of(place.box, place.shape);
    place.writes = least - elements.begin() == replica;
  }
  return places;
}

SlicedTensors slices_of_parameters(const NamedTensors& mine, const PlacedParameters& places) {
  SlicedTensors slices(Safetensors{.tensors = mine, .metadata = {{"format", "pt"}}});
  for (auto entry = slices.tensors.begin(); entry != slices.tensors.end();) {
    const PlacedParameter& place = place_of(places, entry->first);
    check_shape(entry->first, entry->second.sizes, place);
    if (place.writes) {
      entry->second = lifted(std::move(entry->second), place);
      ++entry;
    } else {
      entry = slices.tensors.erase(entry);
    }
  }
  return slices;
}

SlicedTensors slices_of_state(SlicedTensors state, const ParameterNames& names,
                              const PlacedParameters& places) {
  SlicedTensors named = by_name(std::move(state), names), result;
  for (auto& [name, tensor] : named.tensors) {
    const PlacedParameter& place = place_of(places, before_last_point(name));
    if (tensor.sizes == shape_of(place.box, place.shape)) {
      if (place.writes) result.tensors.emplace(name, lifted(std::move(tensor), place));
    } else if (is_number(tensor)) {
      if (writes_numbers(place)) result.tensors.emplace(name, std::move(tensor));
    } else {
      throw InvalidArgument("the state " + shown(name) + " is " + bracketed(tensor.sizes) +
                            "; of a divided parameter only numbers, and what has its shape, can "
                            "be saved");
    }
  }
  result.metadata = std::move(named.metadata);
  keep_listed(result.metadata,
              [&](const std::string& name) { return writes_numbers(place_of(places, name)); });
  return result;
}

void join_groups(Communicator& comm, SlicedTensors& state) {
  const std::vector<nlohmann::json> all = gather_object(comm, state.metadata, 0);
  on_root(comm, [&] {
    std::vector<Metadata> of_ranks;
    for (const nlohmann::json& one : all) of_ranks.push_back(one.get<Metadata>());
    state.metadata = joined_groups(of_ranks);
  });
}

SlicedTensors part_of_parameters(const SlicedTensors& stored, const NamedTensors& mine,
                                 const PlacedParameters& places, const std::string& source) {
  SlicedTensors part;
  part.metadata = stored.metadata;
  for (const auto& [name, tensor] : mine) {
    const PlacedParameter& place = place_of(places, name);
    check_shape(name, tensor.sizes(), place);
    const SlicedTensor* found = stored.find(name);
    if (found == nullptr) throw CheckpointError(source + ": has no tensor " + shown(name));
    part.tensors.emplace(name, stored_box(*found, name, place, source));
  }
  return part;
}

void load_parameters(const NamedTensors& mine, const PlacedParameters& places,
                     const SlicedTensors& stored, const std::string& source) {
  const SlicedTensors part = part_of_parameters(stored, mine, places, source);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : mine) {
    const SlicedTensor& from = *part.find(name);
    const at::Tensor to = parameter.detach();
    if (to.is_cpu() && to.scalar_type() == from.dtype &&
        to.strides() == at::IntArrayRef(from.strides))
      from.read(0, to.as_strided({to.numel()}, {1}, to.storage_offset()));
    else
      to.copy_(from.whole());
  }
}

SlicedTensors part_of_state(const SlicedTensors& stored, const ParameterNames& names,
                            const PlacedParameters& places, const std::string& source) {
  SlicedTensors part = of_parameters(stored, names, source);
  for (auto& [name, tensor] : part.tensors) {
    const PlacedParameter& place = place_of(places, before_last_point(name));
    if (is_number(tensor) && !place.shape.empty()) continue;
    tensor = stored_box(tensor, name, place, source);
  }
  return by_position(std::move(part), names, source);
}

}  // namespace lockstep::inline v0
