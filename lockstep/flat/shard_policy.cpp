#include "lockstep/flat/shard_policy.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/flat/shard_plan.h"
#include "lockstep/hooks/name_pattern.h"

namespace lockstep::inline v0::flat {
namespace {

std::string words_of(const ShardRule& rule) {
  std::string text = rule.cut == Cut::kElements ? "anywhere"
                     : rule.cut == Cut::kWhole  ? "whole"
                     : rule.rows == 1           ? "rows"
                                                : std::to_string(rule.rows) + " rows";
  if (!rule.names.empty()) text += " of '" + joined(rule.names, "', '") + "'";
  if (rule.dims) text += ", " + std::to_string(*rule.dims) + " dims";
  if (rule.below > 0) text += ", below " + std::to_string(rule.below) + " elements";
  return text;
}

[[noreturn]] void refuse(const ShardPolicy& policy, size_t rule, const std::string& why) {
  throw InvalidArgument("ShardPolicy: " + name_of_rule(policy, rule) + " " + why);
}

void check_rule(const ShardPolicy& policy, size_t index, const NamedTensors& tensors) {
  const ShardRule& rule = policy.rules[index];
  if (rule.dims && *rule.dims < 0) refuse(policy, index, "asks for fewer than no dims");
  if (rule.below < 0) refuse(policy, index, "asks for fewer than no elements");
  if (rule.rows < 1 || (rule.rows > 1 && rule.cut != Cut::kRows))
    refuse(policy, index,
           "has rows = " + std::to_string(rule.rows) + "; rows are 1 or more, and for kRows");
  for (const std::string& pattern : rule.names) {
    const bool known = std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
      return is_named_or_below(entry.first, pattern);
    });
    if (known) continue;
    std::vector<std::string> names;
    for (const auto& entry : tensors) names.push_back(entry.first);
    const std::string near = nearest_name(pattern, names);
    refuse(policy, index,
           "names '" + pattern + "', and no parameter is called so or lies below" +
               (near.empty() ? std::string() : "; did you mean '" + near + "'?"));
  }
}

bool takes(const ShardRule& rule, const std::string& name, const at::Tensor& tensor) {
  if (rule.dims && tensor.dim() != *rule.dims) return false;
  if (rule.below > 0 && tensor.numel() >= rule.below) return false;
  return rule.names.empty() ||
         std::any_of(rule.names.begin(), rule.names.end(),
                     [&](const auto& p) { return is_named_or_below(name, p); });
}

// A tensor that is not dense becomes contiguous.
bool rows_are_stretches(const at::Tensor& tensor) {
  return !tensor.is_non_overlapping_and_dense() || tensor.size(0) == 1 ||
         tensor.stride(0) == tensor.numel() / tensor.size(0);
}

}  // namespace

ShardChoice choose_shards(const ShardPolicy& policy, const NamedTensors& tensors) {
  const std::vector<ShardRule>& rules = policy.rules;
  for (size_t i = 0; i < rules.size(); ++i) check_rule(policy, i, tensors);
  ShardChoice choice;
  choice.taken.resize(rules.size() + 1);
  for (const auto& [name, tensor] : tensors) {
    const auto found =
        std::find_if(rules.begin(), rules.end(),
                     [&n = name, &t = tensor](const ShardRule& rule) { return takes(rule, n, t); });
    const auto index = static_cast<size_t>(found - rules.begin());
    choice.rule.push_back(index);
    ++choice.taken[index].tensors;
    choice.taken[index].bytes += static_cast<int64_t>(tensor.nbytes());
    const Cut cut = found == rules.end() ? Cut::kElements : found->cut;
    int64_t grain = cut == Cut::kElements ? 1 : kUncut;
    if (cut == Cut::kRows && tensor.dim() > 0 && tensor.numel() > 0) {
      if (!rows_are_stretches(tensor))
        refuse(policy, index,
               "cuts '" + name +
                   "' by rows, which lies transposed in memory; make it contiguous, or whole");
      grain = std::min(found->rows, tensor.size(0)) * (tensor.numel() / tensor.size(0));
    }
    choice.grains.push_back(grain);
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (choice.taken[i].tensors == 0)
      refuse(policy, i, "takes no parameter: none fits, or earlier rules take those that do");
  }
  return choice;
}

std::string name_of_rule(const ShardPolicy& policy, size_t rule) {
  if (rule >= policy.rules.size()) return "no rule (anywhere)";
  return "rule " + std::to_string(rule + 1) + " (" + words_of(policy.rules[rule]) + ")";
}

std::string to_text(const ShardPolicy& policy, const ShardChoice& choice) {
  std::string text;
  for (size_t i = 0; i < choice.taken.size(); ++i) {
    const auto& [tensors, bytes] = choice.taken[i];
    text += name_of_rule(policy, i) + ": " + std::to_string(tensors) +
            (tensors == 1 ? " tensor, " : " tensors, ") + std::to_string(bytes) + " bytes\n";
  }
  return text;
}

}  // namespace lockstep::inline v0::flat
