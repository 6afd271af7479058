#include "lockstep/parallel/tensor/tensor_plan.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/name_pattern.h"
#include "lockstep/model/lm_experts.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kLayers = "model.layers.";

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

[[noreturn]] void refuse_division(const std::string& name, int64_t count, const char* of,
                                  int64_t parts) {
  throw InvalidArgument("TensorPlan: '" + name + "' has " + std::to_string(count) + " " + of +
                        ", which do not divide among " + std::to_string(parts) +
                        " parts; take a number of parts that divides them, or style whole");
}

PartSlice evenly(const std::string& name, const std::vector<int64_t>& shape, int64_t dim,
                 int64_t heads, int64_t part, int64_t parts) {
  const int64_t size = shape[static_cast<size_t>(dim)];
  if (heads > 0 && size % heads != 0)
    throw InvalidArgument("TensorPlan: '" + name + "' has " + std::to_string(size) +
                          (dim == 0 ? " rows" : " columns") + ", which are not " +
                          std::to_string(heads) + " heads");
  if (heads > 0 && heads % parts != 0) refuse_division(name, heads, "heads", parts);
  if (size % parts != 0) refuse_division(name, size, dim == 0 ? "rows" : "columns", parts);
  return {dim, size / parts * part, size / parts * (part + 1)};
}

// Fewer heads than parts: neighbours have the same one.
PartSlice shared_head(const std::string& name, const std::vector<int64_t>& shape, int64_t heads,
                      int64_t part, int64_t parts) {
  if (parts % heads != 0) refuse_division(name, heads, "heads", parts);
  if (heads == 1) return {};
  const PartSlice slice = evenly(name, shape, 0, heads, part * heads / parts, heads);
  return {slice.dim, slice.begin, slice.end, part % (parts / heads) != 0};
}

// All of it on one part: the parts before it end, and those behind it begin, there.
PartSlice of_one_part(const std::string& name, const std::vector<int64_t>& shape, int64_t experts,
                      int64_t part, int64_t parts) {
  const int64_t expert = expert_of(name);
  if (expert < 0 || expert >= experts)
    throw InvalidArgument("TensorPlan: '" + name + "' is of none of " + std::to_string(experts) +
                          " experts; leave it out of style experts");
  if (experts % parts != 0) refuse_division(name, experts, "experts", parts);
  const int64_t has = expert * parts / experts;
  return {0, part > has ? shape[0] : 0, part < has ? 0 : shape[0]};
}

}  // namespace

const char* to_string(TensorStyle style) {
  switch (style) {
    case TensorStyle::kWhole:
      return "whole";
    case TensorStyle::kColumn:
      return "column";
    case TensorStyle::kHeads:
      return "heads";
    case TensorStyle::kRow:
      return "row";
    case TensorStyle::kVocabulary:
      return "vocabulary";
    case TensorStyle::kExperts:
      return "experts";
    case TensorStyle::kRows:
      return "rows";
    case TensorStyle::kRowsBegin:
      return "rows begin";
    case TensorStyle::kRowsEnd:
      return "rows end";
    case TensorStyle::kPositions:
      break;
  }
  return "positions";
}

bool is_of_rows(TensorStyle style) {
  return style == TensorStyle::kRows || style == TensorStyle::kRowsBegin ||
         style == TensorStyle::kRowsEnd || style == TensorStyle::kPositions;
}

std::vector<int64_t> shape_of(const PartSlice& slice, std::vector<int64_t> shape) {
  if (!slice.whole()) shape[static_cast<size_t>(slice.dim)] = slice.end - slice.begin;
  return shape;
}

TensorPlan::TensorPlan(std::vector<TensorRule> rules) : rules_(std::move(rules)) {
  for (const TensorRule& rule : rules_) {
    const bool needs = rule.style == TensorStyle::kHeads || rule.style == TensorStyle::kExperts;
    if (rule.heads < 0 || (needs && rule.heads == 0))
      throw InvalidArgument("TensorPlan: '" + rule.modules + "' is divided by " +
                            (rule.style == TensorStyle::kExperts ? "experts" : "heads") +
                            ", of which it has " + std::to_string(rule.heads) + "; say how many");
  }
}

const TensorRule* TensorPlan::rule_of(const std::string& module) const {
  const auto found = std::find_if(rules_.begin(), rules_.end(), [&](const TensorRule& rule) {
    return is_named(module, rule.modules);
  });
  return found == rules_.end() ? nullptr : &*found;
}

PartSlice TensorPlan::slice(const std::string& name, const std::vector<int64_t>& shape,
                            int64_t part, int64_t parts) const {
  if (parts < 1 || part < 0 || part >= parts)
    throw InvalidArgument("TensorPlan: part " + std::to_string(part) + " of " +
                          std::to_string(parts));
  const TensorRule* const rule = rule_of(module_of(name));
  if (rule == nullptr || rule->style == TensorStyle::kWhole || is_of_rows(rule->style)) return {};
  if (shape.empty() || shape.size() > 2)
    throw InvalidArgument("TensorPlan: '" + name + "' has " + std::to_string(shape.size()) +
                          " dims; style " + to_string(rule->style) + " is for matrices and biases");
  switch (rule->style) {
    case TensorStyle::kRow:
      if (shape.size() == 1) return {};
      return evenly(name, shape, 1, rule->heads, part, parts);
    case TensorStyle::kVocabulary:
      if (shape[0] < parts) refuse_division(name, shape[0], "rows", parts);
      return {0, shape[0] * part / parts, shape[0] * (part + 1) / parts};
    case TensorStyle::kExperts:
      return of_one_part(name, shape, rule->heads, part, parts);
    case TensorStyle::kHeads:
      if (rule->heads < parts) return shared_head(name, shape, rule->heads, part, parts);
      break;
    default:
      break;
  }
  return evenly(name, shape, 0, rule->heads, part, parts);
}

void TensorPlan::check(const NamedShapes& parameters, int64_t parts) const {
  for (const auto& [name, shape] : parameters) slice(name, shape, 0, parts);
  for (const TensorRule& rule : rules_) {
    const auto means = [&](const auto& one) {
      return is_named(module_of(one.first), rule.modules);
    };
    const auto is_rule_of = [&](const auto& one) { return rule_of(module_of(one.first)) == &rule; };
    if (std::any_of(parameters.begin(), parameters.end(), is_rule_of)) continue;
    if (std::any_of(parameters.begin(), parameters.end(), means))
      throw InvalidArgument("TensorPlan: '" + rule.modules + "' (" + to_string(rule.style) +
                            ") stands behind rules that mean all of its modules; put it first");
    throw InvalidArgument("TensorPlan: '" + rule.modules + "' (" + to_string(rule.style) +
                          ") means no module with parameters; the first parameter is '" +
                          (parameters.empty() ? std::string() : parameters.front().first) + "'");
  }
}

TensorPlan lm_tensor_plan(const LmConfig& config) {
  const std::string attention = std::string(kLayers) + "*.self_attn.";
  const std::string mlp = std::string(kLayers) + "*.mlp.";
  std::vector<TensorRule> rules{{"model.embed_tokens", TensorStyle::kVocabulary}};
  if (config.num_hidden_layers > 0) {
    const int64_t heads = config.num_attention_heads, key_heads = config.key_value_heads();
    rules.push_back({attention + "q_proj", TensorStyle::kHeads, heads});
    rules.push_back({attention + "k_proj", TensorStyle::kHeads, key_heads});
    rules.push_back({attention + "v_proj", TensorStyle::kHeads, key_heads});
    rules.push_back({attention + "o_proj", TensorStyle::kRow, heads});
    const auto divide = [&](const std::string& where, const ExpertNames& names) {
      rules.push_back({where + names.gate, TensorStyle::kColumn});
      rules.push_back({where + names.up, TensorStyle::kColumn});
      rules.push_back({where + names.down, TensorStyle::kRow});
    };
    if (config.has_experts()) {
      const ExpertNames names = expert_names(config);
      divide(std::string(kLayers) + "*." + names.block + ".experts.*.", names);
      if (config.shared_expert_intermediate_size > 0) divide(mlp + "shared_expert.", names);
    } else {
      divide(mlp, {"mlp", "gate_proj", "up_proj", "down_proj"});
    }
  }
  if (!config.tie_word_embeddings) rules.push_back({"lm_head", TensorStyle::kVocabulary});
  return TensorPlan(std::move(rules));
}

TensorPlan lm_expert_plan(const LmConfig& config) {
  if (!config.has_experts())
    throw InvalidArgument("lm_expert_plan: the model has no experts; set num_local_experts");
  return TensorPlan({{std::string(kLayers) + "*." + expert_names(config).block + ".experts.*.*",
                      TensorStyle::kExperts, config.num_local_experts}});
}

NamedShapes lm_parameter_shapes(const LmConfig& config) {
  check(config);
  const int64_t width = config.hidden_size, inner = config.intermediate_size,
                queries = config.num_attention_heads * config.head_width(),
                keys = config.key_value_heads() * config.head_width();
  NamedShapes shapes{{"model.embed_tokens.weight", {config.vocab_size, width}}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = kLayers + std::to_string(i) + ".";
    const auto linear = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
      shapes.push_back({layer + name + ".weight", {rows, columns}});
      if (bias) shapes.push_back({layer + name + ".bias", {rows}});
    };
    linear("self_attn.q_proj", queries, width, config.attention_bias);
    linear("self_attn.k_proj", keys, width, config.attention_bias);
    linear("self_attn.v_proj", keys, width, config.attention_bias);
    linear("self_attn.o_proj", width, queries, config.attention_bias);
    if (config.has_experts()) {
      const ExpertNames names = expert_names(config);
      const std::string block = std::string(names.block) + ".";
      // As the modules are registered: Mixtral's w1, w2, w3 and Qwen2-MoE's gate, up, down.
      const auto mlp = [&](const std::string& where, int64_t columns) {
        const bool is_mixtral = config.shared_expert_intermediate_size == 0;
        linear(where + names.gate, columns, width, false);
        if (is_mixtral) linear(where + names.down, width, columns, false);
        linear(where + names.up, columns, width, false);
        if (!is_mixtral) linear(where + names.down, width, columns, false);
      };
      linear(block + "gate", config.num_local_experts, width, false);
      for (int64_t e = 0; e < config.num_local_experts; ++e)
        mlp(block + "experts." + std::to_string(e) + ".", inner);
      if (config.shared_expert_intermediate_size > 0) {
        mlp(block + "shared_expert.", config.shared_expert_intermediate_size);
        linear(block + "shared_expert_gate", 1, width, false);
      }
    } else {
      linear("mlp.gate_proj", inner, width, config.mlp_bias);
      linear("mlp.up_proj", inner, width, config.mlp_bias);
      linear("mlp.down_proj", width, inner, config.mlp_bias);
    }
    shapes.push_back({layer + "input_layernorm.weight", {width}});
    shapes.push_back({layer + "post_attention_layernorm.weight", {width}});
  }
  shapes.push_back({"model.norm.weight", {width}});
  if (!config.tie_word_embeddings) shapes.push_back({"lm_head.weight", {config.vocab_size, width}});
  return shapes;
}

TensorPlan bert_tensor_plan(const BertConfig& config) {
  const std::string layer = "bert.encoder.layer.*.";
  const int64_t heads = config.num_attention_heads;
  return TensorPlan({{"bert.embeddings.word_embeddings", TensorStyle::kVocabulary},
                     {layer + "attention.self.*", TensorStyle::kHeads, heads},
                     {layer + "attention.output.dense", TensorStyle::kRow, heads},
                     {layer + "intermediate.dense", TensorStyle::kColumn},
                     {layer + "output.dense", TensorStyle::kRow}});
}

}  // namespace lockstep::inline v0
