#include "lockstep/checkpoint/named_optimizer_state.h"

#include <torch/optim/optimizer.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;

constexpr const char* kParameters = "parameters";

std::string key_of_group(size_t group) {
  return "group." + std::to_string(group);
}

// The parts before and after the last point: "3.exp_avg", "embed.weight.exp_avg".
std::pair<std::string, std::string> divided(const std::string& name) {
  const size_t point = name.rfind('.');
  if (point == std::string::npos) return {name, ""};
  return {name.substr(0, point), name.substr(point + 1)};
}

// Formats "'a'" or "'a' and 3 more".
std::string first_of(const std::vector<std::string>& names) {
  std::string text = shown(names.front());
  if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " more";
  return text;
}

// A parameter group as a file has it.
struct Group {
  json options;
  std::vector<std::string> names;
};

std::vector<Group> groups_of(const Metadata& metadata, const std::string& source) {
  std::vector<Group> groups;
  for (auto entry = metadata.find(key_of_group(0)); entry != metadata.end();
       entry = metadata.find(key_of_group(groups.size()))) {
    Group group;
    try {
      group.options = json::parse(entry->second);
      group.options.at(kParameters).get_to(group.names);
    } catch (const json::exception&) {
      throw CheckpointError(source + ": the options of parameter group " +
                            std::to_string(groups.size()) + " cannot be read");
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// The recorded group of each group of `names`.
std::vector<size_t> matched(const std::vector<Group>& recorded, const ParameterNames& names,
                            const std::string& source) {
  std::map<std::string, size_t> group_of;
  for (size_t g = 0; g < recorded.size(); ++g) {
    for (const std::string& name : recorded[g].names) {
      if (!group_of.emplace(name, g).second)
        throw CheckpointError(source + ": lists the parameter " + shown(name) + " twice");
    }
  }
  std::vector<std::string> missing, left;
  std::set<std::string> wanted;
  for (const auto& group : names) {
    for (const std::string& name : group) {
      wanted.insert(name);
      if (group_of.count(name) == 0) missing.push_back(name);
    }
  }
  for (const auto& [name, g] : group_of) {
    if (wanted.count(name) == 0) left.push_back(name);
  }
  if (!missing.empty())
    throw CheckpointError(source + ": has no parameter " + first_of(missing) +
                          ", which the optimizer has; it is another model's");
  if (!left.empty())
    throw CheckpointError(source + ": has the parameter " + first_of(left) +
                          ", which the optimizer lacks; it is another model's");
  std::vector<size_t> match;
  std::map<size_t, std::string> taken;  // recorded groups, each with one of its parameters
  for (const auto& group : names) {
    size_t g = 0;
    if (group.empty()) {  // any other empty one
      while (g < recorded.size() && (!recorded[g].names.empty() || taken.count(g) != 0)) ++g;
    } else {
      g = group_of.at(group.front());
    }
    if (g == recorded.size())
      throw CheckpointError(source +
                            ": has another number of parameter groups than the optimizer, " +
                            std::to_string(names.size()));
    const auto [former, fresh] = taken.emplace(g, group.empty() ? "" : group.front());
    if (!fresh)
      throw CheckpointError(source + ": has the parameters " + shown(former->second) + " and " +
                            shown(group.front()) +
                            " in one group, and the optimizer in two; group them as they were");
    for (const std::string& name : group) {
      if (group_of.at(name) != g)
        throw CheckpointError(source + ": has the parameters " + shown(group.front()) + " and " +
                              shown(name) +
                              " in two groups, and the optimizer in one; group them as they were");
    }
    match.push_back(g);
  }
  if (match.size() != recorded.size())
    throw CheckpointError(source + ": has another number of parameter groups than the optimizer, " +
                          std::to_string(names.size()));
  return match;
}

}  // namespace

std::optional<ParameterNames> parameter_names(const NamedTensors& parameters,
                                              const torch::optim::Optimizer& optimizer) {
  std::map<const c10::TensorImpl*, std::string> name_of;
  for (const auto& [name, tensor] : parameters) name_of.emplace(tensor.unsafeGetTensorImpl(), name);
  ParameterNames names;
  std::set<const c10::TensorImpl*> seen;  // torch's optimizers take tied parameters twice
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = name_of.find(parameter.unsafeGetTensorImpl());
      if (found == name_of.end() || !seen.insert(found->first).second) return std::nullopt;
      names.back().push_back(found->second);
    }
  }
  return names;
}

bool is_by_name(const Metadata& optimizer) {
  const auto group = optimizer.find(key_of_group(0));
  if (group == optimizer.end()) return false;
  const json parsed = json::parse(group->second, nullptr, false);
  return parsed.is_object() && parsed.contains(kParameters) && parsed.at(kParameters).is_array();
}

SlicedTensors by_name(SlicedTensors state, const ParameterNames& names) {
  std::vector<const std::string*> in_order;
  for (const auto& group : names) {
    for (const std::string& name : group) in_order.push_back(&name);
  }
  SlicedTensors result;
  for (auto& [name, tensor] : state.tensors) {
    const auto [position, what] = divided(name);
    size_t index = 0;
    const char* end = position.data() + position.size();
    const auto read = std::from_chars(position.data(), end, index);
    if (read.ec != std::errc() || read.ptr != end || index >= in_order.size())
      throw InvalidArgument("the state " + shown(name) + " belongs to no parameter");
    result.tensors.emplace(*in_order[index] + "." + what, std::move(tensor));
  }
  result.metadata = std::move(state.metadata);
  for (size_t g = 0; g < names.size(); ++g) {
    const auto entry = result.metadata.find(key_of_group(g));
    if (entry == result.metadata.end()) break;
    json options = json::parse(entry->second);
    options[kParameters] = names[g];
    entry->second = options.dump();
  }
  return result;
}

SlicedTensors by_position(SlicedTensors state, const ParameterNames& names,
                          const std::string& source) {
  if (!is_by_name(state.metadata)) return state;
  std::vector<Group> recorded = groups_of(state.metadata, source);
  const std::vector<size_t> match = matched(recorded, names, source);
  std::map<std::string, size_t, std::less<>> position_of;
  SlicedTensors result;
  result.metadata = std::move(state.metadata);
  for (size_t g = 0; g < names.size(); ++g) {
    for (const std::string& name : names[g]) position_of.emplace(name, position_of.size());
    json& options = recorded[match[g]].options;
    options[kParameters] = names[g].size();
    result.metadata[key_of_group(g)] = options.dump();
  }
  for (auto& [name, tensor] : state.tensors) {
    const auto [parameter, what] = divided(name);
    const auto found = position_of.find(parameter);
    if (found == position_of.end())
      throw CheckpointError(source + ": " + shown(name) + " belongs to no parameter of a group");
    result.tensors.emplace(std::to_string(found->second) + "." + what, std::move(tensor));
  }
  return result;
}

SlicedTensors of_parameters(SlicedTensors state, const ParameterNames& names,
                            const std::string& source) {
  if (!is_by_name(state.metadata))
    throw CheckpointError(source +
                          ": has the optimizer's state by position, of which no part can be told; "
                          "load it whole and save it again");
  std::set<std::string, std::less<>> wanted;
  for (const auto& group : names) wanted.insert(group.begin(), group.end());
  std::vector<Group> groups = groups_of(state.metadata, source);
  for (size_t g = 0; g < groups.size(); ++g) state.metadata.erase(key_of_group(g));
  size_t kept = groups.size(), next = 0;
  for (Group& group : groups) {
    const bool had_some = !group.names.empty();
    std::erase_if(group.names, [&](const std::string& name) { return !wanted.contains(name); });
    if (had_some && group.names.empty() && kept > names.size()) {
      --kept;
      continue;
    }
    group.options[kParameters] = group.names;
    state.metadata[key_of_group(next++)] = group.options.dump();
  }
  std::erase_if(state.tensors,
                [&](const auto& entry) { return !wanted.contains(divided(entry.first).first); });
  return state;
}

Metadata joined_groups(const std::vector<Metadata>& of_ranks) {
  constexpr const char* kKind = "optimizer";
  const auto who = [](size_t rank) { return "the optimizer of rank " + std::to_string(rank); };
  Metadata result;
  std::vector<Group> all;
  std::map<std::string, size_t> group_of;
  size_t first = 0;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].empty()) continue;
    std::vector<Group> groups = groups_of(of_ranks[rank], who(rank));
    if (result.empty()) {
      first = rank;
      result = of_ranks[rank];
      for (const Group& group : groups) all.push_back({group.options, {}});
    }
    if (result.count(kKind) != of_ranks[rank].count(kKind) ||
        (result.count(kKind) != 0 && result.at(kKind) != of_ranks[rank].at(kKind)))
      throw InvalidArgument(who(rank) + " is of another kind than rank " + std::to_string(first) +
                            "'s; one checkpoint has one kind");
    if (groups.size() != all.size())
      throw InvalidArgument(who(rank) + " has " + std::to_string(groups.size()) +
                            " parameter groups, and rank " + std::to_string(first) + "'s " +
                            std::to_string(all.size()) +
                            "; make the same groups on all ranks, those without parameters too");
    for (size_t g = 0; g < groups.size(); ++g) {
      json own = groups[g].options, other = all[g].options;
      own.erase(kParameters);
      other.erase(kParameters);
      if (own != other)
        throw InvalidArgument(who(rank) + " has other options in parameter group " +
                              std::to_string(g) + " than rank " + std::to_string(first) + "'s");
      for (std::string& name : groups[g].names) {
        const auto [former, fresh] = group_of.emplace(name, g);
        if (former->second != g)
          throw InvalidArgument(who(rank) + " has " + shown(name) + " in parameter group " +
                                std::to_string(g) + ", another rank's in " +
                                std::to_string(former->second));
        if (fresh) all[g].names.push_back(std::move(name));
      }
    }
  }
  for (size_t g = 0; g < all.size(); ++g) {
    all[g].options[kParameters] = all[g].names;
    result[key_of_group(g)] = all[g].options.dump();
  }
  return result;
}

}  // namespace lockstep::inline v0
