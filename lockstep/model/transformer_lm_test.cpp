#include "lockstep/model/transformer_lm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <set>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/lm_cache.h"

namespace lockstep::inline v0::transformer_lm_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LmConfig small(int64_t key_value_heads = 2) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = key_value_heads;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  return config;
}

TransformerLm made(const LmConfig& config, uint64_t seed = 3) {
  torch::manual_seed(seed);
  TransformerLm lm(config);
  const at::NoGradGuard no_grad;  // biases of 0 and norms of 1 would hide what is left out
  for (at::Tensor& parameter : lm->parameters())
    if (parameter.dim() == 1) parameter.add_(torch::randn_like(parameter), 0.2);
  return lm;
}

at::Tensor ids_of(int64_t sequences, int64_t length) {
  return torch::randint(0, 50, {sequences, length}, at::kLong);
}

// |a - b| by the largest of |b|.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double most = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / std::max(most, 1e-30);
}

std::vector<at::Tensor> gradients(TransformerLm& lm) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : lm->parameters()) {
    all.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  return all;
}

void copy_parameters(TransformerLm& from, TransformerLm& to) {
  const at::NoGradGuard no_grad;
  const auto values = from->named_parameters();
  for (auto& item : to->named_parameters()) item.value().copy_(values[item.key()]);
}

TEST(TransformerLm, NamesAndCountsAreTransformers) {
  LmConfig config = small();
  config.num_hidden_layers = 1;
  config.attention_bias = config.mlp_bias = true;
  TransformerLm lm(config);
  int64_t count = 0;
  std::set<std::string> names;
  for (const auto& item : lm->named_parameters()) {
    names.insert(item.key());
    count += item.value().numel();
  }
  std::set<std::string> expected{"model.embed_tokens.weight", "model.norm.weight",
                                 "lm_head.weight"};
  const std::string layer = "model.layers.0.";
  for (const char* linear : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    expected.insert(layer + linear + ".weight");
    expected.insert(layer + linear + ".bias");
  }
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    expected.insert(layer + norm + ".weight");
  EXPECT_EQ(names, expected);
  EXPECT_EQ(count, parameter_count(config));
  config.tie_word_embeddings = true;
  TransformerLm tied(config);
  EXPECT_EQ(tied->named_parameters().size(), names.size() - 1);
  EXPECT_THAT(tied->unit_names(),
              ElementsAre("model.embed_tokens", "model.layers.0", "model.norm", "lm_head"));
}

// The nodes in float32 against libtorch's operations in double, which compute by autograd.
TEST(TransformerLm, NodesAreTheComposedForm) {
  for (const int64_t key_value_heads : {1, 2, 4}) {
    for (const bool tied : {false, true}) {
      LmConfig config = small(key_value_heads);
      config.tie_word_embeddings = tied;
      config.attention_bias = config.mlp_bias = tied;
      TransformerLm lm = made(config), exact = made(config);
      copy_parameters(lm, exact);
      exact->to(at::kDouble);
      const at::Tensor ids = ids_of(3, 17), targets = ids_of(3, 17);
      const at::Tensor logits = lm(ids), expected = exact(ids);
      EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{3, 17, 50}));
      EXPECT_LT(difference(logits, expected), 2e-6);
      next_token_loss(logits, targets).backward();
      next_token_loss(expected, targets).backward();
      const auto found = gradients(lm), truth = gradients(exact);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_LT(difference(found[i], truth[i]), 1e-5) << lm->named_parameters().keys()[i];
    }
  }
}

TEST(TransformerLm, PackedSequencesAreThoseOfTheirOwn) {
  TransformerLm lm = made(small());
  const at::Tensor lengths = torch::tensor({5, 5, 1, 12}, at::kLong);
  const at::Tensor ids = torch::randint(0, 50, {23}, at::kLong);
  const at::Tensor packed = lm(ids, lengths);
  int64_t begin = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const auto length = lengths[i].item<int64_t>();
    const at::Tensor alone = lm(ids.narrow(0, begin, length).unsqueeze(0))[0];
    EXPECT_LT(difference(packed.narrow(0, begin, length), alone), 2e-6);
    begin += length;
  }
}

TEST(TransformerLm, ATokenSeesNothingThatComesLater) {
  TransformerLm lm = made(small());
  at::Tensor ids = ids_of(1, 20);
  const at::Tensor before = lm(ids);
  ids[0].narrow(0, 11, 9).copy_(torch::randint(0, 50, {9}, at::kLong));
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 11), lm(ids).narrow(1, 0, 11)));
}

TEST(TransformerLm, TokenByTokenIsTheWholeText) {
  for (const int64_t key_value_heads : {2, 4}) {
    TransformerLm lm = made(small(key_value_heads));
    lm->eval();
    const at::Tensor ids = ids_of(2, 14);
    const at::Tensor whole = lm(ids);
    LmCache cache(lm->config(), 2, 14);
    // Some at once, one by one, and some more behind them.
    int64_t at = 0;
    for (const int64_t news : {6, 1, 1, 4, 2}) {
      const at::Tensor logits = lm->next(ids.narrow(1, at, news), cache);
      at += news;
      EXPECT_EQ(cache.length, at);
      EXPECT_LT(difference(logits, whole.select(1, at - 1)), 2e-6) << at;
    }
    EXPECT_THROW(lm->next(ids.narrow(1, 0, 1), cache), InvalidArgument);
  }
}

// No farther from float32 than libtorch's operations under autocast, which a hook asks for.
TEST(TransformerLm, InBFloat16ItIsAsNearAsTheComposedForm) {
  TransformerLm exact = made(small()), nodes = made(small()), composed = made(small());
  for (int64_t i = 0; i < 3; ++i) {
    wrap_forward(*composed, "model.layers." + std::to_string(i) + ".self_attn.q_proj",
                 [](const Forward& forward, const at::Tensor& x) { return forward(x); });
  }
  const at::Tensor ids = ids_of(3, 32), targets = ids_of(3, 32);
  const auto run = [&](TransformerLm& lm, bool half) {
    std::optional<amp::Autocast> autocast;
    if (half) autocast.emplace(amp::AutocastSettings{});
    const at::Tensor logits = lm(ids);
    next_token_loss(logits, targets).backward();
    auto all = gradients(lm);
    all.push_back(logits.detach().to(at::kFloat));
    return all;
  };
  const auto truth = run(exact, false), found = run(nodes, true), others = run(composed, true);
  // One gradient's rounding varies with the instruction set; that of all of them does not.
  double ours_of_all = 0, theirs_of_all = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kFloat);
    const double norm = truth[i].norm().item<double>();
    const double ours = (found[i] - truth[i]).norm().item<double>() / norm;
    const double theirs = (others[i] - truth[i]).norm().item<double>() / norm;
    EXPECT_LT(ours, 2 * theirs) << i;
    EXPECT_LT(theirs, 0.2) << i;
    EXPECT_GT(ours, 0) << i;
    ours_of_all += ours * ours;
    theirs_of_all += theirs * theirs;
  }
  EXPECT_LT(std::sqrt(ours_of_all), 1.2 * std::sqrt(theirs_of_all));
}

TEST(TransformerLm, WeightsGradientsMayComeLater) {
  TransformerLm lm = made(small());
  const at::Tensor ids = torch::randint(0, 50, {20}, at::kLong), targets = ids.roll(-1);
  const auto backward = [&](const std::shared_ptr<internal::DeferredGradients>& deferred) {
    const LmPass pass = lm->pass({12, 8}, {.deferred = deferred});
    at::Tensor x = ids;
    for (const auto& unit : lm->units()) x = unit->forward(x, pass);
    next_token_loss(x, targets).backward();
  };
  backward(nullptr);
  const auto now = gradients(lm);
  const auto deferred = make_deferred();
  const at::Tensor weight = lm->named_parameters()["model.layers.1.mlp.up_proj.weight"];
  int arrived = 0;
  weight.register_hook([&](const at::Tensor& gradient) {
    ++arrived;
    EXPECT_EQ(gradient.sizes(), weight.sizes());
  });
  backward(deferred);
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(lm->named_parameters()["model.norm.weight"].grad().defined());
  EXPECT_EQ(arrived, 0);
  run_deferred(*deferred);
  EXPECT_EQ(arrived, 1) << "a hook sees it";
  run_deferred(*deferred);  // nothing is left
  EXPECT_EQ(arrived, 1);
  const auto later = gradients(lm);
  for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(at::equal(now[i], later[i]));
}

TEST(TransformerLm, APartOfABatchDropsWhatTheWholeDoes) {
  LmConfig config = small();
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.3;
  TransformerLm lm = made(config);
  const at::Tensor ids = ids_of(4, 10).reshape({40});
  const auto run = [&](int64_t first, int64_t sequences) {
    const LmPass pass = lm->pass(std::vector<int64_t>(static_cast<size_t>(sequences), 10),
                                 {.first_row = 10 * first, .dropout_seed = 77});
    at::Tensor x = ids.narrow(0, 10 * first, 10 * sequences);
    for (const auto& unit : lm->units()) x = unit->forward(x, pass);
    return x;
  };
  const at::Tensor whole = run(0, 4);
  EXPECT_LT(difference(run(0, 1), whole.narrow(0, 0, 10)), 2e-6);
  EXPECT_LT(difference(run(1, 3), whole.narrow(0, 10, 30)), 2e-6);
  EXPECT_GT(difference(run(1, 1), run(1, 1) * 0 + lm(ids.narrow(0, 10, 10))), 1e-3);
  lm->eval();
  EXPECT_TRUE(at::equal(lm(ids), lm(ids)));
}

// No place's mask is another's, shifted by rows.
TEST(TransformerLm, PlacesDropIndependently) {
  internal::LmPass pass;
  pass.dropout_seed = 9;
  std::vector<kernels::Dropout> places;
  for (int64_t unit = 0; unit < 3; ++unit)
    for (const auto place :
         {internal::LmPlace::kWeights, internal::LmPlace::kAttention, internal::LmPlace::kMlp})
      places.push_back(internal::dropout_at(pass, unit, place, 0.5));
  constexpr int64_t kColumns = 256;
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = 0; b < places.size(); ++b) {
      for (int64_t shift = a == b ? 1 : -12; shift <= 12; ++shift) {
        int same = 0;
        for (int64_t c = 0; c < kColumns; ++c)
          same += kernels::is_kept(places[a], 20, c) == kernels::is_kept(places[b], 20 + shift, c);
        EXPECT_NEAR(same, kColumns / 2, 60) << a << ", " << b << ", " << shift;
      }
    }
  }
}

TEST(TransformerLm, HooksReachUnitsAndLinears) {
  TransformerLm lm = made(small());
  const at::Tensor ids = ids_of(2, 9);
  const at::Tensor before = lm(ids);
  int calls = 0;
  auto unit = wrap_forward<LmUnit::Signature>(
      *lm, "model.layers.1", [&](const auto& forward, const at::Tensor& rows, const LmPass& pass) {
        ++calls;
        return forward(rows, pass);
      });
  EXPECT_TRUE(at::equal(lm(ids), before));
  EXPECT_EQ(calls, 1);
  unit.remove();
  auto linear =
      wrap_forward(*lm, "model.layers.0.mlp.gate_proj",
                   [](const Forward& forward, const at::Tensor& x) { return forward(x); });
  EXPECT_LT(difference(lm(ids), before), 2e-6);
  linear.remove();
  torch::nn::Linear other(torch::nn::LinearOptions(32, 44).bias(false));
  replace_child(*lm, "model.layers.0.mlp.gate_proj", other);
  EXPECT_GT(difference(lm(ids), before), 1e-3);
}

// Whoever has a model divided computes it there.
TEST(TransformerLm, HooksAreAroundTheWholeModel) {
  TransformerLm lm = made(small());
  const at::Tensor ids = ids_of(2, 9), targets = ids_of(2, 9);
  const at::Tensor loss = lm->loss(ids, targets), losses = lm->scores(ids, targets).losses;
  std::vector<LmCall::Gives> seen;
  const auto hook = lm->forward_hooks().add([&](const auto& forward, const LmCall& call) {
    seen.push_back(call.gives);
    return forward(call) * 2;
  });
  EXPECT_TRUE(at::equal(lm->loss(ids, targets), loss * 2));
  EXPECT_TRUE(at::equal(lm(ids, at::Tensor(), targets), loss * 2));
  EXPECT_TRUE(at::equal(lm->scores(ids, targets).losses, losses * 2));
  const at::Tensor logits = lm(ids);
  using Gives = LmCall::Gives;
  EXPECT_THAT(seen, ElementsAre(Gives::kLoss, Gives::kLoss, Gives::kScores, Gives::kLogits));
  LmCache cache(small(), 2, 16);
  EXPECT_THAT(message_of<InvalidArgument>([&] { lm->next(ids, cache); }), HasSubstr("hooks"));
  lm->forward_hooks().remove(hook);
  EXPECT_TRUE(at::equal(lm(ids) * 2, logits));
}

TEST(TransformerLm, BadInputIsOneLine) {
  TransformerLm lm = made(small());
  const auto line = [&](const at::Tensor& ids, const at::Tensor& lengths = {}) {
    const std::string text = message_of<InvalidArgument>([&] { lm(ids, lengths); });
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  EXPECT_THAT(line(at::Tensor()), HasSubstr("ids must be int64"));
  EXPECT_THAT(line(torch::zeros({2, 3})), HasSubstr("ids must be int64"));
  EXPECT_THAT(line(torch::full({1, 3}, 50, at::kLong)), HasSubstr("50 is outside the vocabulary"));
  EXPECT_THAT(line(torch::full({1, 3}, -1, at::kLong)), HasSubstr("-1 is outside"));
  EXPECT_THAT(line(ids_of(1, 65)), HasSubstr("65 tokens; give 1 to 64"));
  EXPECT_THAT(line(ids_of(1, 6).view({6}), torch::tensor({2, 3}, at::kLong)),
              HasSubstr("sum to 5"));
  EXPECT_THAT(line(ids_of(1, 6).view({6}), torch::tensor({0, 6}, at::kLong)),
              HasSubstr("of 0 tokens"));
  EXPECT_THAT(line(ids_of(2, 3), torch::tensor({3, 3}, at::kLong)), HasSubstr("not with [B, T]"));
  const auto says = [](LmConfig config) {
    return message_of<InvalidArgument>([&] { TransformerLm(config, LmOptions{}); });
  };
  LmConfig config = small(3);
  EXPECT_THAT(says(config), HasSubstr("4 attention heads do not divide by num_key_value_heads 3"));
  config = small();
  config.head_dim = 7;
  EXPECT_THAT(says(config), HasSubstr("head_dim is 7; it must be even"));
  const LmPass pass = lm->pass({4, 3});
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { lm->units()[1]->forward(torch::randn({6, 32}), pass); }),
      HasSubstr("given 6 rows, and the pass has 7 tokens"));
}

TEST(LmConfig, JsonIsReadBack) {
  LmConfig config = small();
  config.tie_word_embeddings = true;
  config.rope_scaling = {"llama3", 8, 1, 4, 32};
  config.eos_token_ids = {3, 7};
  config.bos_token_id.reset();
  config.head_dim = 8;
  EXPECT_EQ(lm_config_from_json(to_json(config), "x"), config);
  // As transformers wrote it before version 5.
  const LmConfig old = lm_config_from_json(
      R"({"model_type": "llama", "rope_theta": 500000.0, "num_key_value_heads": 8, "eos_token_id": 2,
          "rope_scaling": {"type": "linear", "factor": 2.0}, "pretraining_tp": 1})",
      "x");
  EXPECT_EQ(old.rope_theta, 500000);
  EXPECT_EQ(old.rope_scaling.type, "linear");
  EXPECT_EQ(old.rope_scaling.factor, 2);
  EXPECT_EQ(old.key_value_heads(), 8);
  EXPECT_EQ(lm_preset("mini").num_hidden_layers, 6);
  EXPECT_THROW(lm_preset("huge"), InvalidArgument);
}

TEST(LmConfig, RefusesWithOneLine) {
  for (const char* json :
       {"", "[]", R"({"model_type": "gpt2"})", R"({"hidden_act": "gelu"})",
        R"({"hidden_size": "wide"})", R"({"num_attention_heads": 5})",
        R"({"rope_parameters": {"rope_type": "yarn"}})",
        R"({"rope_scaling": {"rope_type": "linear"}})", R"({"rope_scaling": 3})",
        R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", R"({"eos_token_id": [1, "x"]})",
        R"({"eos_token_id": 40000})", R"({"rms_norm_eps": 0})", R"({"vocab_size": 1e300})"}) {
    const std::string line =
        message_of<InvalidArgument>([&] { lm_config_from_json(json, "config.json"); });
    EXPECT_THAT(line, ::testing::StartsWith("config.json")) << json;
    EXPECT_EQ(line.find('\n'), std::string::npos) << json;
  }
}

// What no rank has whole: in parts, the numbers of the whole.
TEST(TransformerLm, PartsAreDrawnAsTheWhole) {
  LmConfig config = lm_preset("tiny");
  config.attention_bias = true;
  torch::manual_seed(17);
  const TransformerLm whole(config);
  torch::manual_seed(17);
  const TransformerLm empty(config, LmOptions{.initial = InitialParameters::kNone});
  const auto part_of = empty->drawn_parts();
  for (const auto& item : whole->named_parameters()) {
    const at::Tensor expected = item.value().detach().flatten();
    for (const int64_t pieces : {1, 3}) {
      at::Tensor found = torch::full_like(expected, 9);
      const int64_t step = (expected.numel() + pieces - 1) / pieces;
      for (int64_t begin = 0; begin < expected.numel(); begin += step)
        part_of(item.key(), begin, found.slice(0, begin, begin + step));
      EXPECT_TRUE(found.equal(expected)) << item.key() << " in " << pieces;
    }
  }
  EXPECT_THROW(part_of("nothing", 0, torch::empty({1})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::transformer_lm_test
