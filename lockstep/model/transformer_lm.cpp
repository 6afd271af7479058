#include "lockstep/model/transformer_lm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/kernels/normal.h"
#include "lockstep/model/internal/lm_context.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::inline v0 {
namespace {

LmConfig checked(const LmConfig& config, const LmExperts& experts) {
  check(config);
  if (experts.parts < 1 || experts.part < 0 || experts.part >= experts.parts ||
      config.num_local_experts % experts.parts != 0 || (experts.parts > 1 && !config.has_experts()))
    throw InvalidArgument("TransformerLm: " + std::to_string(config.num_local_experts) +
                          " experts do not divide into part " + std::to_string(experts.part) +
                          " of " + std::to_string(experts.parts));
  if (experts.parts > 1 && !experts.ranks)
    throw InvalidArgument("TransformerLm: a part of the experts needs LmExperts::ranks");
  return config;
}

// As transformers computes them, in float32.
at::Tensor frequencies(const LmConfig& config) {
  const int64_t width = config.head_width();
  const RopeScaling& scaling = config.rope_scaling;
  at::Tensor plain = at::pow(static_cast<float>(config.rope_theta),
                             at::arange(0, width, 2, at::kFloat) / static_cast<double>(width))
                         .reciprocal();
  if (scaling.type == "linear") return plain / scaling.factor;
  if (scaling.type != "llama3") return plain;
  const auto trained = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor waves = 2 * std::numbers::pi / plain;
  const at::Tensor share = ((trained / waves - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor))
                               .clamp(0, 1);
  return (1 - share) * (plain / scaling.factor) + share * plain;
}

std::vector<int64_t> lengths_of(const at::Tensor& ids, const at::Tensor& lengths) {
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() < 1 || ids.dim() > 2 ||
      ids.numel() == 0)
    throw InvalidArgument("TransformerLm: ids must be int64 [B, T], or [N] packed, and not empty");
  if (ids.dim() == 2) {
    if (lengths.defined())
      throw InvalidArgument("TransformerLm: lengths go with packed ids [N], not with [B, T]");
    return std::vector<int64_t>(static_cast<size_t>(ids.size(0)), ids.size(1));
  }
  if (!lengths.defined()) return {ids.size(0)};
  if (lengths.scalar_type() != at::kLong || lengths.dim() != 1 || !lengths.is_cpu())
    throw InvalidArgument("TransformerLm: lengths must be int64 [sequences] on the CPU");
  const at::Tensor whole = lengths.contiguous();
  const auto* const first = whole.const_data_ptr<int64_t>();
  std::vector<int64_t> all(first, first + whole.numel());
  if (std::accumulate(all.begin(), all.end(), int64_t{0}) != ids.size(0))
    throw InvalidArgument("TransformerLm: lengths sum to " +
                          std::to_string(std::accumulate(all.begin(), all.end(), int64_t{0})) +
                          ", but there are " + std::to_string(ids.size(0)) + " ids");
  return all;
}

void check_ids(const at::Tensor& ids, int64_t vocabulary) {
  if (!ids.is_cpu()) return;
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least >= 0 && most < vocabulary) return;
  throw InvalidArgument("TransformerLm: the id " + std::to_string(least < 0 ? least : most) +
                        " is outside the vocabulary of " + std::to_string(vocabulary));
}

// The names of all matrices of the whole model, in its order, from those of a part. Every expert has those that a
// part's first one has.
std::vector<std::string> whole_matrices(
    const torch::OrderedDict<std::string, at::Tensor>& parameters, const LmConfig& config,
    const LmExperts& experts) {
  const std::string first =
      ".experts." + std::to_string(experts.first(config.num_local_experts)) + ".";
  std::vector<std::string> names, of_expert;
  std::string block;
  const auto end_block = [&] {
    for (int64_t i = 0; i < config.num_local_experts && !of_expert.empty(); ++i)
      for (const std::string& name : of_expert)
        names.push_back(block + ".experts." + std::to_string(i) + "." + name);
    of_expert.clear();
  };
  for (const auto& item : parameters) {
    if (item.value().dim() != 2) continue;
    const std::string& name = item.key();
    if (const size_t at = name.find(first); at != std::string::npos) {
      block = name.substr(0, at);
      of_expert.push_back(name.substr(at + first.size()));
    } else if (!is_expert_parameter(name)) {
      end_block();
      names.push_back(name);
    }
  }
  end_block();
  return names;
}

void check_targets(const at::Tensor& targets, const at::Tensor& ids) {
  if (!targets.defined() || targets.scalar_type() != at::kLong || targets.sizes() != ids.sizes())
    throw InvalidArgument("TransformerLm: targets must be int64, of the shape of ids");
}

// Where only one of several ranks would find out.
void check_values(const at::Tensor& targets, int64_t vocabulary) {
  const at::Tensor wrong =
      targets.ne(-100).logical_and_(targets.lt(0).logical_or_(targets.ge(vocabulary)));
  if (wrong.any().item<bool>())
    throw InvalidArgument("TransformerLm: the target " +
                          std::to_string(targets.masked_select(wrong)[0].item<int64_t>()) +
                          " is outside the vocabulary of " + std::to_string(vocabulary) +
                          "; -100 is for none");
}

// Those that drawing would take, which others may take now.
std::vector<uint64_t> seeds_to_come(size_t count) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(generator.mutex());
    generator = generator.clone();
  }
  std::vector<uint64_t> seeds;
  for (size_t i = 0; i < count; ++i) seeds.push_back(internal::draw_seeds(1, generator)[0]);
  return seeds;
}

}  // namespace

TransformerLmImpl::TransformerLmImpl(const LmConfig& config, LmOptions options)
    : torch::nn::Module("TransformerLm"),
      config_(checked(config, options.experts)),
      experts_(std::move(options.experts)) {
  if (experts_.parts > 1 && options.initial == InitialParameters::kDrawn)
    throw InvalidArgument(
        "TransformerLm: a part of a model is not drawn, since the parts would not fit together; "
        "make it with InitialParameters::kNone and load it");
  // Modules that only give their parameters the names that transformers has.
  const auto inner = register_module("model", std::make_shared<torch::nn::Module>("LlamaModel"));
  auto embedding = std::make_shared<internal::LmEmbedding>(config_);
  inner->register_module("embed_tokens", embedding);
  add_unit("model.embed_tokens", embedding);
  const auto layers =
      inner->register_module("layers", std::make_shared<torch::nn::Module>("Layers"));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string name = std::to_string(i);
    add_unit(
        "model.layers." + name,
        layers->register_module(name, std::make_shared<internal::LmLayer>(config_, experts_, i)));
  }
  add_unit("model.norm",
           inner->register_module("norm", std::make_shared<internal::LmLastNorm>(config_)));
  add_unit(
      "lm_head",
      register_module("lm_head", std::make_shared<internal::LmHead>(
                                     config_, config_.tie_word_embeddings ? embedding : nullptr)));
  if (options.initial == InitialParameters::kNone) {
    seeds_ = seeds_to_come(whole_matrices(named_parameters(), config_, experts_).size());
    return;
  }
  const at::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 2)
      internal::draw_normal(parameter, config_.initializer_range);
    else if (item.key().ends_with("bias"))
      parameter.zero_();
  }
}

std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>
TransformerLmImpl::drawn_parts() const {
  struct Values {
    std::optional<uint64_t> seed;  // none: a constant
    float constant = 0;
  };
  std::map<std::string, Values> values;
  const auto parameters = named_parameters();
  const auto matrices = whole_matrices(parameters, config_, experts_);
  if (seeds_.size() != matrices.size())
    throw InvalidArgument(
        "TransformerLm: drawn_parts() is for a model made with InitialParameters::kNone");
  for (size_t i = 0; i < matrices.size(); ++i) values[matrices[i]].seed = seeds_[i];
  for (const auto& item : parameters)
    if (item.value().dim() != 2)
      values[item.key()].constant = item.key().ends_with("bias") ? 0 : 1;  // 1: a norm's
  const auto deviation = static_cast<float>(config_.initializer_range);
  return [values, deviation](const std::string& name, int64_t begin, const at::Tensor& part) {
    const auto found = values.find(name);
    if (found == values.end())
      throw InvalidArgument("drawn_parts: TransformerLm has no parameter '" + name + "'");
    const at::NoGradGuard no_grad;
    if (found->second.seed)
      kernels::fill_normal_part(part.mutable_data_ptr<float>(), begin, part.numel(),
                                *found->second.seed, deviation, at::get_num_threads());
    else
      part.fill_(found->second.constant);
  };
}

void TransformerLmImpl::add_unit(const std::string& name, std::shared_ptr<LmUnit> unit) {
  units_.push_back(std::move(unit));
  unit_names_.push_back(name);
}

at::Tensor TransformerLmImpl::own_rows(const std::vector<int64_t>& lengths) const {
  if (tokens_) return internal::context_layout(*tokens_, lengths, 0).rows;
  return at::arange(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), at::kLong);
}

at::Tensor TransformerLmImpl::own_of(const at::Tensor& flat, const LmPass& pass) const {
  return tokens_ ? flat.index_select(0, device::copy_to(pass->own_rows, flat.device())) : flat;
}

LmPass TransformerLmImpl::pass(const std::vector<int64_t>& lengths, const LmPassOptions& options) {
  return pass_of(lengths, {}, options);
}

LmPass TransformerLmImpl::pass_of(const std::vector<int64_t>& lengths, const at::Tensor& ids,
                                  const LmPassOptions& options) {
  int64_t longest = 0;
  for (const int64_t length : lengths) {
    if (length < 1 || length > config_.max_position_embeddings)
      throw InvalidArgument("TransformerLm: a sequence of " + std::to_string(length) +
                            " tokens; give 1 to " +
                            std::to_string(config_.max_position_embeddings));
    longest = std::max(longest, length);
  }
  if (lengths.empty()) throw InvalidArgument("TransformerLm: a batch without sequences");
  auto pass = std::make_shared<internal::LmPass>();
  pass->part = part_;
  if (tokens_) {
    auto own = internal::context_layout(*tokens_, lengths, options.first_row);
    pass->layout = std::make_shared<internal::CausalLayout>(std::move(own.layout));
    pass->own_rows = std::move(own.rows);
    pass->tokens = tokens_;
  } else {
    std::vector<at::Tensor> positions;
    for (const int64_t length : lengths) positions.push_back(at::arange(length, at::kLong));
    auto layout = std::make_shared<internal::CausalLayout>();
    layout->lengths = lengths;
    layout->positions = positions.size() == 1 ? positions[0] : at::cat(positions);
    layout->first_row = options.first_row;
    pass->layout = std::move(layout);
  }
  // Of all ranks, so that all throw alike.
  if (part_ && part_->divides_rows()) {
    const std::vector<int64_t> counts =
        tokens_ ? tokens_->counts(lengths) : std::vector<int64_t>{pass->layout->positions.size(0)};
    for (const int64_t tokens : counts) {
      if (tokens % part_->count() == 0) continue;
      throw InvalidArgument("TransformerLm: " + std::to_string(tokens) +
                            " tokens do not divide among " + std::to_string(part_->count()) +
                            " parts; with divided rows a batch's number of tokens is a multiple");
    }
  }
  pass->rotary = rotary(longest);
  pass->deferred = options.deferred;
  if (options.padding < 0 || options.padding >= static_cast<int64_t>(lengths.size()))
    throw InvalidArgument("TransformerLm: " + std::to_string(options.padding) + " of " +
                          std::to_string(lengths.size()) +
                          " sequences are padding; leave one that is none");
  const int64_t real =
      std::accumulate(lengths.begin(), lengths.end() - options.padding, int64_t{0});
  // Rows ascend, and padding is behind all others.
  pass->counted = pass->own_rows.defined() ? pass->own_rows.lt(real).sum().item<int64_t>() : real;
  if (config_.has_experts())
    pass->routers = counted_ = std::make_shared<internal::RouterRecord>(config_, experts_);
  const bool drops = is_training() && (config_.attention_dropout > 0 || config_.hidden_dropout > 0);
  pass->dropout_seed = drops ? options.dropout_seed : 0;
  if (drops && pass->dropout_seed == 0) {
    const uint64_t drawn = internal::draw_seeds(1)[0] | 1;
    pass->dropout_seed = part_ ? part_->agree(drawn) : drawn;
  }
  if (tokens_) pass->dropout_seed = tokens_->agree(lengths, ids, pass->dropout_seed);
  return pass;
}

internal::RotaryTable TransformerLmImpl::rotary(int64_t positions) {
  if (!cosines_.defined() || cosines_.size(0) < positions) {
    const at::NoGradGuard no_grad;
    const int64_t count =
        std::min(config_.max_position_embeddings,
                 std::max({positions, int64_t{64}, cosines_.defined() ? 2 * cosines_.size(0) : 0}));
    frequencies_ = frequencies(config_);
    const at::Tensor angles = at::outer(at::arange(count, at::kFloat), frequencies_);
    cosines_ = angles.cos();
    sines_ = angles.sin();
  }
  return {cosines_, sines_, frequencies_, std::make_shared<internal::RotaryRows>()};
}

at::Tensor TransformerLmImpl::forward(const at::Tensor& ids, const at::Tensor& lengths,
                                      const at::Tensor& targets) {
  if (targets.defined()) return loss(ids, targets, lengths);
  return Hookable::forward({.ids = ids, .lengths = lengths, .targets = {}});
}

at::Tensor TransformerLmImpl::loss(const at::Tensor& ids, const at::Tensor& targets,
                                   const at::Tensor& lengths) {
  return Hookable::forward(
      {.ids = ids, .lengths = lengths, .targets = targets, .gives = LmCall::Gives::kLoss});
}

TokenScores TransformerLmImpl::scores(const at::Tensor& ids, const at::Tensor& targets,
                                      const at::Tensor& lengths) {
  const at::NoGradGuard no_grad;
  const at::Tensor both = Hookable::forward(
      {.ids = ids, .lengths = lengths, .targets = targets, .gives = LmCall::Gives::kScores});
  return {both.select(1, 0).contiguous(), both.select(1, 1).ne(0)};
}

at::Tensor TransformerLmImpl::compute(const LmCall& call) {
  if (call.gives == LmCall::Gives::kLogits) return logits(call);
  const auto [rows, all] = before_head(call);
  const at::Tensor targets = own_of(call.targets.reshape({call.targets.numel()}), all);
  if (call.gives == LmCall::Gives::kScores) {
    const TokenScores own = head_scores(*units_.back(), rows, targets, all);
    const at::Tensor both = at::stack({own.losses, own.likeliest.to(at::kDouble)}, 1);
    return tokens_ ? internal::gathered(*all, both) : both;
  }
  if (!is_training() || !config_.has_experts())
    return head_loss(*units_.back(), rows, targets, all);
  const WithRouterLosses routed = router_losses(rows, all);
  const at::Tensor loss = head_loss(*units_.back(), routed.rows, targets, all);
  return routed.loss.defined() ? loss + routed.loss : loss;
}

at::Tensor TransformerLmImpl::logits(const LmCall& call) {
  const at::Tensor& ids = call.ids;
  const std::vector<int64_t> sequences = lengths_of(ids, call.lengths);
  check_ids(ids, config_.vocab_size);
  const LmPass all = pass_of(sequences, ids, {});
  at::Tensor x = own_of(ids.reshape({ids.numel()}), all);
  for (const auto& unit : units_) x = unit->forward(x, all);
  if (tokens_) x = internal::gathered(*all, x);
  return ids.dim() == 2 ? x.view({ids.size(0), ids.size(1), x.size(1)}) : x;
}

std::pair<at::Tensor, LmPass> TransformerLmImpl::before_head(const LmCall& call) {
  const at::Tensor& ids = call.ids;
  const std::vector<int64_t> sequences = lengths_of(ids, call.lengths);
  check_ids(ids, config_.vocab_size);
  check_targets(call.targets, ids);
  if (tokens_) check_values(call.targets, config_.vocab_size);
  const LmPass all = pass_of(sequences, ids, {});
  at::Tensor x = own_of(ids.reshape({ids.numel()}), all);
  for (size_t i = 0; i + 1 < units_.size(); ++i) x = units_[i]->forward(x, all);
  return {x, all};
}

std::vector<RouterStatistics> TransformerLmImpl::routers() const {
  return counted_ ? counted_->statistics() : std::vector<RouterStatistics>();
}

at::Tensor TransformerLmImpl::next(const at::Tensor& ids, LmCache& cache) {
  const at::NoGradGuard no_grad;
  if (!forward_hooks().empty())
    throw InvalidArgument(
        "TransformerLm: next() computes without the hooks that are around the model; copy its "
        "parameters into one without, and where ranks have divided it, put them together first");
  if (tokens_)
    throw InvalidArgument(
        "TransformerLm: next() is for a model that has whole sequences; copy the parameters of "
        "this one, whose tokens are divided among ranks, into one without a context");
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() != 2 || ids.numel() == 0 ||
      ids.size(0) != cache.sequences ||
      cache.keys.size() != static_cast<size_t>(config_.num_hidden_layers) || part_ ||
      experts_.parts > 1 || cache.keys[0].size(1) != config_.key_value_heads() ||
      cache.keys[0].size(3) != config_.head_width() ||
      cache.keys[0].scalar_type() != units_.front()->parameters().front().scalar_type())
    throw InvalidArgument("TransformerLm: next() takes int64 [" + std::to_string(cache.sequences) +
                          ", n] and a cache of this whole model, of its type");
  if (cache.length + ids.size(1) > std::min(cache.capacity, config_.max_position_embeddings))
    throw InvalidArgument("TransformerLm: the cache has room for " +
                          std::to_string(cache.capacity) + " tokens and the model for " +
                          std::to_string(config_.max_position_embeddings));
  check_ids(ids, config_.vocab_size);
  const int64_t news = ids.size(1);
  auto layout = std::make_shared<internal::CausalLayout>();
  layout->lengths.assign(static_cast<size_t>(cache.sequences), news);
  layout->positions =
      at::arange(cache.length, cache.length + news, at::kLong).repeat({cache.sequences});
  auto pass = std::make_shared<internal::LmPass>();
  pass->layout = std::move(layout);
  pass->rotary = rotary(cache.length + news);
  pass->cache = &cache;
  at::Tensor x = ids.reshape({ids.numel()});
  for (size_t i = 0; i + 1 < units_.size(); ++i) x = units_[i]->forward(x, pass);
  x = units_.back()->forward(x.view({cache.sequences, news, -1}).select(1, news - 1).contiguous(),
                             pass);
  cache.length += news;
  return x;
}

LmCache::LmCache(const LmConfig& config, int64_t sequences, int64_t capacity,
                 const at::TensorOptions& options)
    : sequences(sequences), capacity(capacity) {
  if (sequences < 1 || capacity < 1)
    throw InvalidArgument("LmCache: give at least one sequence and one token of room");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    for (auto* of : {&keys, &values})
      of->push_back(
          at::empty({sequences, config.key_value_heads(), capacity, config.head_width()}, options));
  }
}

void take_values(TransformerLm& to, const TransformerLm& from) {
  const at::NoGradGuard no_grad;
  const auto sources = from->named_parameters();
  to->to(sources.begin()->value().scalar_type());
  for (auto& item : to->named_parameters()) {
    const at::Tensor& source = sources[item.key()];
    item.value().copy_(source);
    item.value().set_requires_grad(source.requires_grad());
  }
  to->train(from->is_training());
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const bool is_short = at::isReducedFloatingType(rows.scalar_type());
  return at::cross_entropy_loss(is_short ? rows.to(at::kFloat) : rows, targets.reshape({-1}));
}

at::Tensor head_loss(LmUnit& head, const at::Tensor& rows, const at::Tensor& targets,
                     const LmPass& pass) {
  auto* const plain = dynamic_cast<internal::LmHead*>(&head);
  if (plain == nullptr)
    throw InvalidArgument("head_loss: give the model's last unit, which gives logits");
  const auto share = [&](double divide_by) {
    const at::Tensor there = device::copy_to(targets, rows.device());
    if (!head.forward_hooks().empty())
      return divided_loss(head.forward(rows, pass), there, divide_by);
    return plain->loss(rows, there, *pass, divide_by);
  };
  return pass && pass->tokens ? internal::whole_loss(*pass->tokens, targets, share) : share(0);
}

TokenScores head_scores(LmUnit& head, const at::Tensor& rows, const at::Tensor& targets,
                        const LmPass& pass) {
  auto* const plain = dynamic_cast<internal::LmHead*>(&head);
  if (plain == nullptr)
    throw InvalidArgument("head_scores: give the model's last unit, which gives logits");
  const at::Tensor there = device::copy_to(targets, rows.device());
  if (!head.forward_hooks().empty()) return token_scores(head.forward(rows, pass), there);
  return plain->scores(rows, there, *pass);
}

std::shared_ptr<internal::DeferredGradients> make_deferred() {
  return std::make_shared<internal::DeferredGradients>();
}
void run_deferred(internal::DeferredGradients& deferred) {
  deferred.run();
}

}  // namespace lockstep::inline v0
