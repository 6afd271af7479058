#include "lockstep/model/lm_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/internal/lm_sparse.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/internal/router_record.h"
#include "lockstep/model/router.h"

namespace lockstep::inline v0::lm_experts_test {
namespace {

using ::testing::HasSubstr;

LmConfig small(int64_t chosen = 2, int64_t shared = 0) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.num_local_experts = 4;
  config.num_experts_per_tok = chosen;
  config.shared_expert_intermediate_size = shared;
  return config;
}

TransformerLm made(const LmConfig& config, at::ScalarType type = at::kFloat) {
  torch::manual_seed(3);
  TransformerLm lm(config);
  lm->to(type);
  return lm;
}

at::Tensor ids_of(int64_t rows, int64_t columns) {
  return (torch::arange(rows * columns, at::kLong) * 17 + 5)
      .pow(2)
      .remainder(50)
      .view({rows, columns});
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() /
         std::max(b.abs().max().item<double>(), 1e-30);
}

std::map<std::string, at::Tensor> gradients_of(TransformerLm& lm) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : lm->named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
    if (item.value().grad().defined()) values[item.key()] = item.value().grad().clone();
  }
  lm->zero_grad();
  return values;
}

void expect_near(const std::map<std::string, at::Tensor>& found,
                 const std::map<std::string, at::Tensor>& truth, double tolerance) {
  ASSERT_EQ(found.size(), truth.size());
  for (const auto& [name, value] : truth)
    EXPECT_LT(difference(found.at(name), value), tolerance) << name;
}

// One layer's experts, in the simplest words: token by token, choice by choice.
at::Tensor by_hand(internal::LmSparseMlp& layer, const LmConfig& config, const at::Tensor& rows) {
  const auto of = layer.named_parameters();
  const ExpertNames names = expert_names(config);
  const auto mlp = [&](const at::Tensor& x, const std::string& where) {
    const auto weight = [&](const char* name) { return of[where + name + ".weight"]; };
    return (torch::silu(x.matmul(weight(names.gate).t())) * x.matmul(weight(names.up).t()))
        .matmul(weight(names.down).t());
  };
  const at::Tensor shares = rows.matmul(of["gate.weight"].t()).softmax(1);
  const auto [values, experts] = shares.topk(config.num_experts_per_tok, 1);
  const at::Tensor weights = values / values.sum(1, true);
  const int64_t capacity = expert_capacity(config.capacity_factor, rows.size(0),
                                           config.num_local_experts, config.num_experts_per_tok);
  std::vector<int64_t> taken(static_cast<size_t>(config.num_local_experts), 0);
  std::vector<at::Tensor> results;
  for (int64_t t = 0; t < rows.size(0); ++t) results.push_back(torch::zeros_like(rows[0]));
  for (int64_t j = 0; j < config.num_experts_per_tok; ++j) {
    for (int64_t t = 0; t < rows.size(0); ++t) {
      const auto e = experts[t][j].item<int64_t>();
      if (++taken[static_cast<size_t>(e)] > capacity) continue;
      auto& result = results[static_cast<size_t>(t)];
      result = result + weights[t][j] * mlp(rows[t], "experts." + std::to_string(e) + ".");
    }
  }
  at::Tensor y = torch::stack(results);
  if (config.shared_expert_intermediate_size > 0)
    y = y +
        rows.matmul(of["shared_expert_gate.weight"].t()).sigmoid() * mlp(rows, "shared_expert.");
  return y;
}

// Of two ranks, of which the other one has counted a one of everything.
struct Ranks final : ExpertExchange {
  LmExpertRows exchange(const at::Tensor&, const std::vector<int64_t>&, int64_t) const override {
    return {};
  }
  int64_t token_ranks() const override { return 2; }
  void combine(const at::Tensor& sums) const override { sums.add_(1); }
};

struct NoTokens final : hooks::TokenPart {
  int64_t count() const override { return 2; }
  std::vector<int64_t> rows(const Lengths&) const override { return {}; }
  std::vector<int64_t> counts(const Lengths& lengths) const override { return {0, lengths[0]}; }
  at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const Lengths&) const override {
    return queries * (keys + values).sum();
  }
  void check_heads(int64_t, int64_t) const override {}
  at::Tensor gather(const at::Tensor&, const Lengths&) const override {
    return torch::ones({1, 50});
  }
  void sum(const at::Tensor& numbers) const override { numbers.add_(1); }
  uint64_t agree(const Lengths&, const at::Tensor&, uint64_t drawn) const override { return drawn; }
};

TEST(LmExperts, ATokenGetsTheWeightedSumOfWhatItsExpertsMake) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const double capacity : {0.0, 0.75}) {
      for (const auto& config : {small(1), small(2), small(4), small(2, 40)}) {
        LmConfig limited = config;
        limited.capacity_factor = capacity;
        torch::manual_seed(7);
        internal::LmSparseMlp layer(limited, {}, 0);
        {
          const at::NoGradGuard no_grad;
          for (at::Tensor& parameter : layer.parameters()) parameter.normal_(0, 0.3);
        }
        layer.to(type);
        const at::Tensor rows = torch::randn({37, 32}, type).requires_grad_();
        const at::Tensor dy = torch::randn({37, 32}, type);
        const auto run = [&](const at::Tensor& y) {
          std::vector<at::Tensor> all = layer.parameters();
          all.push_back(rows);
          auto gradients = torch::autograd::grad({y}, all, {dy}, /*retain_graph=*/std::nullopt,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
          gradients.push_back(y.detach());
          return gradients;
        };
        const auto truth = run(by_hand(layer, limited, rows));
        const internal::LmPass pass;
        const auto found = run(layer.work(rows, pass, internal::arithmetic_for(rows)));
        const double tolerance = type == at::kDouble ? 1e-12 : 2e-5;
        for (size_t i = 0; i < truth.size(); ++i) {
          if (!truth[i].defined()) continue;
          // A router of one choice learns nothing here: its weight is 1.
          if (i == 0 && limited.num_experts_per_tok == 1)
            EXPECT_LT(found[i].abs().max().item<double>(), tolerance);
          else
            EXPECT_LT(difference(found[i], truth[i]), tolerance)
                << i << ", " << limited.num_experts_per_tok << ", " << capacity;
        }
      }
    }
  }
}

TEST(LmExperts, NodesAndLibtorchsOperationsAgree) {
  for (const auto& config : {small(1), small(2), small(2, 40)}) {
    LmConfig with_losses = config;
    with_losses.router_aux_loss_coef = 0.1;
    with_losses.router_z_loss_coef = 0.05;
    const at::Tensor ids = ids_of(3, 11), targets = ids.roll(-1, 1);
    TransformerLm exact = made(with_losses, at::kDouble), lm = made(with_losses);
    const at::Tensor truth = exact->loss(ids, targets), loss = lm->loss(ids, targets);
    EXPECT_NEAR(loss.item<double>(), truth.item<double>(), 1e-5);
    truth.backward();
    loss.backward();
    expect_near(gradients_of(lm), gradients_of(exact), 5e-5);
  }
}

TEST(LmExperts, InBFloat16ItIsNear) {
  TransformerLm lm = made(small(2, 40));
  const at::Tensor ids = ids_of(3, 11), targets = ids.roll(-1, 1);
  const at::Tensor truth = lm->loss(ids, targets);
  truth.backward();
  const auto gradients = gradients_of(lm);
  const amp::Autocast autocast(at::kCPU, at::kBFloat16);
  const at::Tensor loss = lm->loss(ids, targets);
  EXPECT_NEAR(loss.item<double>(), truth.item<double>(), 0.03);
  EXPECT_NE(loss.item<double>(), truth.item<double>());
  loss.backward();
  for (const auto& [name, gradient] : gradients_of(lm)) {
    if (name.find("gate.weight") != std::string::npos) continue;  // choices may be others
    const at::Tensor& exact = gradients.at(name);
    EXPECT_LT((gradient - exact).norm().item<double>(), 0.3 * exact.norm().item<double>() + 1e-3)
        << name;
  }
}

TEST(LmExperts, TheSameBitsEveryTime) {
  LmConfig config = small(2, 40);
  config.router_aux_loss_coef = 0.1;
  config.capacity_factor = 0.8;
  TransformerLm lm = made(config);
  const at::Tensor ids = ids_of(4, 16), targets = ids.roll(-1, 1);
  lm->loss(ids, targets).backward();
  const auto first = gradients_of(lm);
  for (int i = 0; i < 3; ++i) {
    lm->loss(ids, targets).backward();
    for (const auto& [name, gradient] : gradients_of(lm))
      EXPECT_TRUE(at::equal(gradient, first.at(name))) << name;
  }
}

// As a rank of a context has them, whose batch's sequences are shorter than the ranks are many.
TEST(LmExperts, ARankWithoutTokensHasGradientsOfZeros) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    std::optional<amp::Autocast> autocast;
    if (type == at::kBFloat16) autocast.emplace(at::kCPU, type);
    for (const int64_t shared : {0, 16}) {
      LmConfig config = small(2, shared);
      config.router_aux_loss_coef = 0.1;
      config.router_z_loss_coef = 0.1;
      LmOptions options;
      options.experts.ranks = std::make_shared<Ranks>();
      torch::manual_seed(3);
      TransformerLm lm(config, options);
      lm->take_tokens(std::make_shared<NoTokens>());
      if (!autocast) lm->to(type);
      const at::Tensor loss = lm->loss(ids_of(1, 1), ids_of(1, 1));
      EXPECT_TRUE(std::isfinite(loss.item<double>()));
      loss.backward();
      for (const auto& [name, gradient] : gradients_of(lm))
        EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << name;
      lm->eval();  // where nothing is added up over the ranks
      lm->loss(ids_of(1, 1), ids_of(1, 1));
      for (const RouterStatistics& layer : lm->routers()) EXPECT_EQ(layer.entropy, 0);
    }
  }
}

TEST(LmExperts, AnExpertWithoutTokensHasAGradientOfZeros) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    TransformerLm lm = made(small(1), type);
    const at::Tensor ids = torch::full({1, 3}, 7, at::kLong);  // one kind of token
    lm->loss(ids, ids).backward();
    const auto statistics = lm->routers();
    ASSERT_EQ(statistics.size(), 2u);
    int idle = 0;
    for (const auto& [name, gradient] : gradients_of(lm)) {
      const int64_t expert = expert_of(name);
      if (expert < 0 || name.find("layers.0") == std::string::npos) continue;
      const bool chosen = statistics[0].choices[static_cast<size_t>(expert)] > 0;
      idle += !chosen;
      EXPECT_EQ(gradient.abs().max().item<double>() > 0, chosen) << name;
    }
    EXPECT_GT(idle, 0);
  }
}

// The losses as their papers write them, of logits that autograd knows.
at::Tensor losses_by_hand(const std::vector<at::Tensor>& logits, const LmConfig& config) {
  const int64_t experts = config.num_local_experts;
  std::vector<at::Tensor> balance, z, all_choices, all_shares;
  const auto balanced = [&](const at::Tensor& choices, const at::Tensor& shares) {
    return static_cast<double>(experts) * (choices.mean(0) * shares.mean(0)).sum();
  };
  for (const at::Tensor& one : logits) {
    const at::Tensor shares = one.softmax(1);
    const at::Tensor choices =
        torch::one_hot(std::get<1>(shares.topk(config.num_experts_per_tok)), experts)
            .sum(1)
            .to(one.scalar_type());
    balance.push_back(balanced(choices, shares));
    all_choices.push_back(choices);
    all_shares.push_back(shares);
    z.push_back(one.logsumexp(1).square().mean());
  }
  return config.router_aux_loss_coef *
             (config.router_aux_loss_by_layer
                  ? torch::stack(balance).mean()
                  : balanced(torch::cat(all_choices), torch::cat(all_shares))) +
         config.router_z_loss_coef * torch::stack(z).mean();
}

LmPass pass_with(const LmConfig& config) {
  auto pass = std::make_shared<internal::LmPass>();
  pass->routers = std::make_shared<internal::RouterRecord>(config, LmExperts{});
  return pass;
}

// Through a pass: two layers' logits, watched and counted, then rows that both lead to.
at::Tensor rows_of(const std::vector<at::Tensor>& logits, const LmConfig& config,
                   const LmPass& pass) {
  at::Tensor rows = torch::zeros({6, 1}, at::kDouble);
  for (size_t layer = 0; layer < logits.size(); ++layer) {
    const auto index = static_cast<int64_t>(layer);
    const at::Tensor watched = internal::watched_logits(logits[layer], pass->routers, index);
    const at::Tensor shares = watched.softmax(1), plain = shares.detach();
    pass->routers->count(
        index, choose_experts(plain.const_data_ptr<double>(), 6, 4, config.num_experts_per_tok), 0,
        watched, shares);
    rows = rows + (shares * shares).sum(1, true);
  }
  return rows;
}

TEST(LmExperts, LossesAndTheirGradientsAreThePapers) {
  torch::manual_seed(4);
  const std::vector<at::Tensor> logits{torch::randn({6, 4}, at::kDouble).requires_grad_(),
                                       torch::randn({6, 4}, at::kDouble).requires_grad_()};
  for (const bool by_layer : {false, true}) {
    for (const auto& [balance, z] : {std::pair{0.3, 0.0}, {0.0, 0.2}, {0.3, 0.2}}) {
      LmConfig config = small();
      config.router_aux_loss_coef = balance;
      config.router_z_loss_coef = z;
      config.router_aux_loss_by_layer = by_layer;
      const at::Tensor plain = rows_of(logits, config, pass_with(config)).square().sum();
      const at::Tensor truth = losses_by_hand(logits, config);
      const auto expected = torch::autograd::grad({3 * (plain + truth)}, logits);

      const LmPass pass = pass_with(config);
      const WithRouterLosses with = router_losses(rows_of(logits, config, pass), pass);
      EXPECT_NEAR(with.loss.item<double>(), truth.item<double>(), 1e-12);
      const auto found =
          torch::autograd::grad({3 * (with.rows.square().sum() + with.loss)}, logits);

      const LmPass other = pass_with(config);
      const at::Tensor attached =
          attach_router_losses(rows_of(logits, config, other), other, /*scale=*/3);
      const auto by_scale = torch::autograd::grad({3 * attached.square().sum()}, logits);
      for (size_t i = 0; i < logits.size(); ++i) {
        EXPECT_LT(difference(found[i], expected[i]), 1e-12) << by_layer << balance << z << i;
        EXPECT_LT(difference(by_scale[i], expected[i]), 1e-12) << by_layer << balance << z << i;
      }
    }
  }
}

TEST(LmExperts, LossHasThemInTrainingAlone) {
  LmConfig config = small();
  const at::Tensor ids = ids_of(2, 9), targets = ids.roll(-1, 1);
  const double plain = made(config)->loss(ids, targets).item<double>();
  config.router_aux_loss_coef = 0.5;
  TransformerLm lm = made(config);
  // Between 1 (balanced; times two choices) and the number of experts.
  const double all = lm->loss(ids, targets).item<double>();
  EXPECT_GT(all - plain, 0.5 * 1.9);
  EXPECT_LT(all - plain, 0.5 * 4);
  EXPECT_EQ(lm(ids, at::Tensor(), targets).item<double>(), all);
  lm->eval();
  EXPECT_EQ(lm->loss(ids, targets).item<double>(), plain);
}

TEST(LmExperts, StatisticsCountChoices) {
  LmConfig config = small();
  config.capacity_factor = 0.5;
  TransformerLm lm = made(config);
  EXPECT_TRUE(lm->routers().empty());
  lm(ids_of(4, 8));
  const auto statistics = lm->routers();
  ASSERT_EQ(statistics.size(), 2u);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const RouterStatistics& one = statistics[static_cast<size_t>(layer)];
    EXPECT_EQ(one.layer, layer);
    int64_t choices = 0, over = 0;
    for (const int64_t count : one.choices) {
      choices += count;
      over += std::max<int64_t>(count - 8, 0);  // 0.5 * 32 * 2 / 4
    }
    EXPECT_EQ(choices, 64);
    EXPECT_EQ(one.left_out, over);
    EXPECT_GE(one.left_out, 32);
    EXPECT_GT(one.entropy, 0);
    EXPECT_LT(one.entropy, std::log(4.0));
  }
  LmConfig dense = small();
  dense.num_local_experts = 0;
  TransformerLm plain = made(dense);
  plain(ids_of(1, 4));
  EXPECT_TRUE(plain->routers().empty());
}

TEST(LmExperts, WeightsGradientsMayComeLater) {
  LmConfig config = small(2, 40);
  config.router_aux_loss_coef = 0.5;
  TransformerLm lm = made(config);
  const at::Tensor ids = torch::arange(20, at::kLong), targets = ids.roll(-1);
  const auto backward = [&](const std::shared_ptr<internal::DeferredGradients>& deferred) {
    const LmPass pass = lm->pass({12, 8}, {.deferred = deferred});
    at::Tensor x = ids;
    for (size_t i = 0; i + 1 < lm->units().size(); ++i) x = lm->units()[i]->forward(x, pass);
    x = attach_router_losses(x, pass, 1);
    next_token_loss(lm->units().back()->forward(x, pass), targets).backward();
  };
  backward(nullptr);
  const auto now = gradients_of(lm);
  const auto deferred = make_deferred();
  backward(deferred);
  for (const auto& item : lm->named_parameters())
    EXPECT_EQ(item.value().grad().defined(),
              item.value().dim() == 1 || item.key() == "model.embed_tokens.weight")
        << item.key();
  run_deferred(*deferred);
  for (const auto& [name, gradient] : gradients_of(lm))
    EXPECT_TRUE(at::equal(gradient, now.at(name))) << name;
}

TEST(LmExperts, HooksSeeAnExpertsRows) {
  TransformerLm lm = made(small());
  const at::Tensor ids = ids_of(2, 9);
  const at::Tensor plain = lm(ids);
  const auto counts = lm->routers()[1].choices;
  int64_t rows = 0;
  HookHandle handle = wrap_forward(*lm, "model.layers.1.block_sparse_moe.experts.2.w1",
                                   [&](const Forward& inner, const at::Tensor& x) {
                                     rows += x.size(0);
                                     return inner(x);
                                   });
  EXPECT_LT(difference(lm(ids), plain), 1e-5);
  handle.remove();
  EXPECT_EQ(rows, counts[2]);
}

TEST(LmExperts, CachedTokensAreTheSame) {
  TransformerLm lm = made(small(2, 40));
  lm->eval();
  const at::Tensor ids = ids_of(2, 10);
  const at::Tensor whole = lm(ids);
  LmCache cache(lm->config(), 2, 10);
  lm->next(ids.narrow(1, 0, 7), cache);
  for (int64_t i = 7; i < 10; ++i)
    EXPECT_LT(difference(lm->next(ids.narrow(1, i, 1), cache), whole.select(1, i)), 1e-5);
}

TEST(LmExperts, PartsAreDrawnAsTheWhole) {
  for (const auto& config : {small(2), small(2, 40)}) {
    torch::manual_seed(17);
    const TransformerLm whole(config);
    const auto expected = whole->named_parameters();
    EXPECT_EQ(parameter_count(config), [&] {
      int64_t count = 0;
      for (const auto& item : expected) count += item.value().numel();
      return count;
    }());
    for (const int64_t parts : {1, 2, 4}) {
      for (int64_t part = 0; part < parts; ++part) {
        torch::manual_seed(17);
        const LmExperts experts{.part = part, .parts = parts, .ranks = std::make_shared<Ranks>()};
        const TransformerLm lm(config,
                               LmOptions{.initial = InitialParameters::kNone, .experts = experts});
        const auto part_of = lm->drawn_parts();
        int64_t mine = 0;
        for (const auto& item : lm->named_parameters()) {
          const at::Tensor found = torch::full({item.value().numel()}, 9.0);
          part_of(item.key(), 0, found);
          EXPECT_TRUE(at::equal(found, expected[item.key()].detach().flatten())) << item.key();
          mine += is_expert_parameter(item.key());
        }
        EXPECT_EQ(mine, 2 * 3 * 4 / parts);
      }
    }
  }
}

TEST(LmExperts, NamesSayWhoseAParameterIs) {
  EXPECT_EQ(expert_of("model.layers.0.block_sparse_moe.experts.12.w1.weight"), 12);
  EXPECT_EQ(expert_of("model.layers.0.mlp.shared_expert.up_proj.weight"), -1);
  EXPECT_EQ(expert_of("model.layers.0.mlp.experts.gate_up_proj"), -1);
  EXPECT_FALSE(is_expert_parameter("model.layers.3.block_sparse_moe.gate.weight"));
}

TEST(LmExperts, JsonIsReadBack) {
  LmConfig config = small(3);
  config.head_dim = 8;
  config.router_aux_loss_coef = 0.02;
  config.router_z_loss_coef = 0.001;
  config.capacity_factor = 1.25;
  config.router_aux_loss_by_layer = true;
  EXPECT_EQ(lm_config_from_json(to_json(config), "x"), config);
  EXPECT_THAT(to_json(config), HasSubstr("\"MixtralForCausalLM\""));
  config.shared_expert_intermediate_size = 40;
  EXPECT_EQ(lm_config_from_json(to_json(config), "x"), config);
  EXPECT_THAT(to_json(config), HasSubstr("\"Qwen2MoeForCausalLM\""));
  const LmConfig silent = lm_config_from_json(R"({"model_type": "mixtral"})", "x");
  EXPECT_EQ(silent.num_local_experts, 8);
  EXPECT_EQ(silent.intermediate_size, 14336);
  EXPECT_EQ(silent.rope_theta, 1e6);
}

TEST(LmExperts, WhatMakesNoSenseIsRefusedInOneLine) {
  const auto refused = [](const auto& change) {
    LmConfig config = small();
    change(config);
    const std::string line = message_of<InvalidArgument>([&] { check(config); });
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return line;
  };
  EXPECT_THAT(refused([](LmConfig& c) { c.num_local_experts = -1; }),
              HasSubstr("num_local_experts is -1"));
  EXPECT_THAT(refused([](LmConfig& c) { c.num_experts_per_tok = 5; }),
              HasSubstr("num_experts_per_tok is 5; give 1 to the number of experts, 4"));
  EXPECT_THAT(refused([](LmConfig& c) { c.num_experts_per_tok = 0; }),
              HasSubstr("num_experts_per_tok is 0"));
  EXPECT_THAT(refused([](LmConfig& c) { c.capacity_factor = -0.5; }), HasSubstr("capacity_factor"));
  EXPECT_THAT(refused([](LmConfig& c) { c.router_aux_loss_coef = -1; }),
              HasSubstr("router_aux_loss_coef"));
  EXPECT_THAT(refused([](LmConfig& c) { c.router_z_loss_coef = std::nan(""); }),
              HasSubstr("router_z_loss_coef"));
  EXPECT_THAT(refused([](LmConfig& c) { c.shared_expert_intermediate_size = -8; }),
              HasSubstr("shared_expert_intermediate_size"));
  EXPECT_THAT(refused([](LmConfig& c) { c.mlp_bias = true; }), HasSubstr("mlp_bias"));
  for (
      const char* json :
      {R"({"model_type": "mixtral", "sliding_window": 4096})",
       R"({"model_type": "mixtral", "num_local_experts": 0})",
       R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", R"({"model_type": "qwen2_moe"})",
       R"({"model_type": "qwen2_moe", "norm_topk_prob": true})",
       R"({"model_type": "qwen2_moe", "norm_topk_prob": true, "qkv_bias": false, "decoder_sparse_step": 2})"}) {
    const std::string line =
        message_of<InvalidArgument>([&] { lm_config_from_json(json, "config.json"); });
    EXPECT_THAT(line, ::testing::StartsWith("config.json")) << json;
    EXPECT_EQ(line.find('\n'), std::string::npos) << json;
  }
  EXPECT_THAT(message_of<InvalidArgument>([] {
                TransformerLm(small(), LmOptions{.initial = InitialParameters::kNone,
                                                 .experts = {.part = 0, .parts = 3}});
              }),
              HasSubstr("4 experts do not divide into part 0 of 3"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                TransformerLm(small(), LmOptions{.initial = InitialParameters::kNone,
                                                 .experts = {.part = 0, .parts = 2}});
              }),
              HasSubstr("LmExperts::ranks"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                const LmExperts half{.part = 0, .parts = 2, .ranks = std::make_shared<Ranks>()};
                TransformerLm(small(),
                              LmOptions{.initial = InitialParameters::kDrawn, .experts = half});
              }),
              HasSubstr("a part of a model is not drawn"));
}

}  // namespace
}  // namespace lockstep::inline v0::lm_experts_test
