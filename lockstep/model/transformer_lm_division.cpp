// A TransformerLm as the part that one of several ranks has (hooks/division.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0 {

int64_t TransformerLmImpl::divided_dim(const std::string& parameter) const {
  const size_t end = parameter.rfind('.');
  const size_t before = parameter.rfind('.', end - 1);
  const std::string module = parameter.substr(before + 1, end - before - 1);
  std::vector<std::string> columns{"q_proj",  "k_proj",  "v_proj",      "gate_proj",
                                   "up_proj", "lm_head", "embed_tokens"},
      rows{"o_proj", "down_proj"};
  if (config_.has_experts()) {
    const ExpertNames names = expert_names(config_);
    columns.insert(columns.end(), {names.gate, names.up});
    rows.push_back(names.down);
  }
  const auto has = [&](const std::vector<std::string>& all) {
    return std::find(all.begin(), all.end(), module) != all.end();
  };
  if (has(columns)) return 0;
  return has(rows) && parameter.ends_with(".weight") ? 1 : -1;
}

void TransformerLmImpl::take_part(std::shared_ptr<const hooks::ModelPart> part) {
  if (part->count() == 1) return;
  const int64_t parts = part->count(), keys = config_.key_value_heads();
  if (config_.num_attention_heads % parts != 0 || (keys % parts != 0 && parts % keys != 0))
    throw InvalidArgument("TransformerLm: " + std::to_string(config_.num_attention_heads) +
                          " heads and " + std::to_string(keys) + " key heads do not divide among " +
                          std::to_string(parts) + " parts");
  part_ = std::move(part);
  check_heads();
}

void TransformerLmImpl::take_tokens(std::shared_ptr<const hooks::TokenPart> tokens) {
  if (tokens->count() == 1) return;
  if (config_.attention_dropout > 0)
    throw InvalidArgument(
        "TransformerLm: attention_dropout is " + std::to_string(config_.attention_dropout) +
        ", and tokens that are divided among ranks drop no weights of attention; set it to 0, "
        "hidden_dropout is possible");
  if (config_.has_experts() && experts_.token_ranks() == 1 &&
      (config_.router_aux_loss_coef > 0 || config_.router_z_loss_coef > 0))
    throw InvalidArgument(
        "TransformerLm: the routers' losses are of all tokens, which ranks divide; give "
        "LmExperts::ranks over these");
  tokens_ = std::move(tokens);
  check_heads();
}

void TransformerLmImpl::check_heads() const {
  if (!tokens_) return;
  const int64_t parts = part_ ? part_->count() : 1;
  tokens_->check_heads(config_.num_attention_heads / parts,
                       std::max<int64_t>(1, config_.key_value_heads() / parts));
}

}  // namespace lockstep::inline v0
