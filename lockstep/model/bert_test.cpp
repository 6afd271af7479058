#include "lockstep/model/bert.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/hooks/forward_hook.h"

namespace lockstep::inline v0 {
namespace {

BertConfig small(int64_t heads, int64_t width, double dropout = 0) {
  BertConfig config;
  config.vocab_size = 60;
  config.hidden_size = heads * width;
  config.num_hidden_layers = 3;
  config.num_attention_heads = heads;
  config.intermediate_size = 2 * heads * width + 3;
  config.max_position_embeddings = 40;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout;
  config.initializer_range = 0.1;
  config.labels = {"a", "b", "c"};
  return config;
}

struct Batch {
  at::Tensor ids, mask, types, lengths, labels;
};

Batch padded(bool holes) {
  Batch batch;
  batch.ids = torch::randint(1, 60, {4, 18}, at::kLong);
  batch.mask = torch::zeros({4, 18}, at::kLong);
  const int64_t lengths[] = {18, 3, 11, 1};
  for (int64_t i = 0; i < 4; ++i) batch.mask[i].narrow(0, 0, lengths[i]).fill_(1);
  if (holes) batch.mask[0][5] = 0;
  batch.types = torch::randint(0, 2, {4, 18}, at::kLong);
  batch.labels = torch::tensor({0, 1, 2, 1}, at::kLong);
  return batch;
}

// The same sequences without their padding.
Batch packed(const Batch& from) {
  const at::Tensor seen = from.mask.to(at::kBool);
  return {from.ids.masked_select(seen),
          {},
          from.types.masked_select(seen),
          from.mask.sum(1),
          from.labels};
}

at::Tensor logits_of(BertClassifier& model, const Batch& batch) {
  return model->forward(batch.ids, batch.mask, batch.types, batch.lengths);
}

at::Tensor loss_of(BertClassifier& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(logits_of(model, batch), batch.labels);
}

std::vector<at::Tensor> gradients_of(BertClassifier& model, const Batch& batch) {
  model->zero_grad();
  loss_of(model, batch).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters())
    gradients.push_back(parameter.grad().clone());
  return gradients;
}

BertClassifier copy_of(BertClassifier& model, at::ScalarType type) {
  BertClassifier copy(model->config());
  copy->to(type);
  const at::NoGradGuard no_grad;
  auto to = copy->parameters();
  const auto from = model->parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  return copy;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE((actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(),
            tolerance)
      << what;
}

// float64 is computed by libtorch's operations and their gradients.
TEST(BertClassifier, Float32IsThatOfDoublePrecision) {
  torch::manual_seed(1);
  for (const char* activation : {"gelu", "gelu_new", "relu"})
    for (const auto& [heads, width] : {std::pair{3, 8}, std::pair{2, 32}}) {
      BertConfig config = small(heads, width);
      config.hidden_act = activation;
      BertClassifier model(config), exact = copy_of(model, at::kDouble);
      const Batch whole = padded(false);
      for (const Batch& batch : {whole, padded(true), packed(whole)}) {
        expect_close(logits_of(model, batch), logits_of(exact, batch), 1e-5, activation);
        const auto expected = gradients_of(exact, batch), actual = gradients_of(model, batch);
        const auto names = model->named_parameters().keys();
        for (size_t i = 0; i < names.size(); ++i)
          expect_close(actual[i], expected[i], 1e-5, names[i]);
      }
    }
}

TEST(BertClassifier, ParametersAreCountedBeforeItIsMade) {
  for (const size_t classes : {1, 5}) {
    BertConfig config = bert_preset("mini");
    config.vocab_size = 100;
    config.num_hidden_layers = 3;
    config.labels.resize(classes, "x");
    const BertClassifier model(config, InitialParameters::kNone);
    int64_t count = 0;
    for (const at::Tensor& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(parameter_count(config), count);
  }
}

TEST(BertClassifier, PackedIsPadded) {
  torch::manual_seed(2);
  BertClassifier model(small(2, 16));
  const Batch batch = padded(false);
  expect_close(logits_of(model, packed(batch)), logits_of(model, batch), 1e-5, "logits");
  const auto one = gradients_of(model, batch), other = gradients_of(model, packed(batch));
  for (size_t i = 0; i < one.size(); ++i) expect_close(other[i], one[i], 1e-5, std::to_string(i));
}

TEST(BertClassifier, Bfloat16WithinItsPrecision) {
  torch::manual_seed(3);
  for (const bool few : {false, true}) {
    BertClassifier model(few ? small(3, 8) : small(2, 32));
    const Batch whole = padded(false);
    for (const Batch& batch : {whole, padded(true), packed(whole)}) {
      const at::Tensor expected = logits_of(model, batch);
      const auto gradients = gradients_of(model, batch);
      std::vector<at::Tensor> rounded;
      {
        const amp::Autocast autocast(at::kCPU, at::kBFloat16);
        const at::Tensor logits = logits_of(model, batch);
        expect_close(logits, expected, 0.05, "logits");
        model->zero_grad();
        torch::nn::functional::cross_entropy(logits.to(at::kFloat), batch.labels).backward();
      }
      const auto names = model->named_parameters().keys();
      const auto parameters = model->parameters();
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i].find("key.bias") != std::string::npos) continue;  // truly 0
        const at::Tensor actual = parameters[i].grad();
        EXPECT_EQ(actual.scalar_type(), at::kFloat);
        EXPECT_LT((actual - gradients[i]).norm().item<double>(),
                  0.05 * gradients[i].norm().item<double>() + 1e-5)
            << names[i];
      }
    }
  }
}

// Along a random direction, with the same random numbers every time: backward's masks are
// forward's.
TEST(BertClassifier, GradientsUnderDropoutAreDifferences) {
  torch::manual_seed(4);
  BertClassifier model(small(2, 16, 0.3));
  const Batch whole = padded(false);
  for (const Batch& batch : {whole, packed(whole)}) {
    const auto parameters = model->parameters();
    torch::manual_seed(9);
    const auto gradients = gradients_of(model, batch);
    std::vector<at::Tensor> direction;
    double expected = 0;
    for (const at::Tensor& gradient : gradients) {
      direction.push_back(torch::randn_like(gradient) * 0.1 + gradient);
      expected += gradient.mul(direction.back()).sum().item<double>();
    }
    const at::NoGradGuard no_grad;
    const auto at_distance = [&](double by) {
      for (size_t i = 0; i < parameters.size(); ++i)
        at::Tensor(parameters[i]).add_(direction[i], by);
      torch::manual_seed(9);
      const double loss = loss_of(model, batch).item<double>();
      for (size_t i = 0; i < parameters.size(); ++i)
        at::Tensor(parameters[i]).add_(direction[i], -by);
      return loss;
    };
    const double h = 2e-3, difference = (at_distance(h) - at_distance(-h)) / (2 * h);
    EXPECT_NEAR(difference, expected, 0.02 * std::abs(expected));
  }
}

TEST(BertClassifier, DropoutFollowsTheSeed) {
  BertClassifier model(small(2, 16, 0.2));
  const Batch batch = padded(false);
  const auto run = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return gradients_of(model, batch);
  };
  const auto first = run(1), again = run(1), other = run(2);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(again[i])) << i;
  EXPECT_FALSE(first[0].equal(other[0]));
  // Two forwards in a row differ, too.
  EXPECT_FALSE(logits_of(model, batch).equal(logits_of(model, batch)));
}

TEST(BertClassifier, DrawsNothingForNothing) {
  const Batch batch = padded(false);
  BertClassifier evaluated(small(2, 16, 0.2)), plain(small(2, 16));
  evaluated->eval();
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const at::Tensor logits = logits_of(evaluated, batch);
  logits_of(plain, batch);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(before));
  EXPECT_TRUE(logits_of(evaluated, batch).equal(logits));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(logits_of(evaluated, batch).equal(logits));
}

TEST(BertClassifier, FrozenParametersGetNothing) {
  torch::manual_seed(5);
  BertClassifier model(small(2, 16));
  const Batch batch = padded(false);
  const auto expected = gradients_of(model, batch);
  auto named = model->named_parameters();
  model->zero_grad();
  for (auto& item : named)
    if (item.key().find("embeddings") != std::string::npos ||
        item.key().find("layer.0") != std::string::npos ||
        item.key().find("value.weight") != std::string::npos)
      item.value().set_requires_grad(false);
  loss_of(model, batch).backward();
  size_t i = 0;
  for (const auto& item : named) {
    if (item.value().requires_grad())
      expect_close(item.value().grad(), expected[i], 1e-6, item.key());
    else
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
    ++i;
  }
}

TEST(BertClassifier, BackwardTwiceAddsUp) {
  torch::manual_seed(6);
  BertClassifier model(small(2, 16));
  const Batch batch = padded(false);
  const auto once = gradients_of(model, batch);
  model->zero_grad();
  const at::Tensor loss = loss_of(model, batch);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  const auto parameters = model->parameters();
  for (size_t i = 0; i < once.size(); ++i)
    expect_close(parameters[i].grad(), 2 * once[i], 1e-5, std::to_string(i));
  EXPECT_THROW(torch::autograd::grad({loss_of(model, batch)}, parameters, {}, {},
                                     /*create_graph=*/true),
               InvalidArgument);
}

TEST(BertClassifier, ThreadsDoNotChangeTheNumbers) {
  torch::manual_seed(7);
  BertClassifier model(small(4, 64));
  Batch batch = padded(false);
  batch.ids = batch.ids.repeat({40, 1}), batch.mask = batch.mask.repeat({40, 1});
  batch.types = batch.types.repeat({40, 1}), batch.labels = batch.labels.repeat({40});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = gradients_of(model, batch);
  at::set_num_threads(2);
  const auto two = gradients_of(model, batch);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) expect_close(two[i], one[i], 1e-6, std::to_string(i));
}

TEST(BertClassifier, StartsAsTransformersDo) {
  const auto parameters = [](uint64_t seed) {
    torch::manual_seed(seed);
    BertConfig config = small(4, 16);
    config.pad_token_id = 2;
    return BertClassifier(config)->named_parameters();
  };
  const auto first = parameters(3), again = parameters(3), other = parameters(4);
  for (const auto& entry : first) {
    const std::string& name = entry.key();
    at::Tensor own = entry.value().detach();
    EXPECT_TRUE(entry.value().requires_grad() && own.is_contiguous()) << name;
    EXPECT_TRUE(at::equal(own, again[name])) << name;
    if (name.ends_with("bias") || own.dim() == 1) {
      EXPECT_TRUE((own == (name.ends_with("bias") ? 0 : 1)).all().item<bool>()) << name;
      continue;
    }
    EXPECT_FALSE(at::equal(own, other[name])) << name;
    if (name.find("word_embeddings") != std::string::npos) {
      EXPECT_TRUE((own[2] == 0).all().item<bool>());
      own = own.narrow(0, 3, own.size(0) - 3);
    }
    const auto count = static_cast<double>(own.numel());
    EXPECT_NEAR(own.std().item<double>(), 0.1, 0.5 / std::sqrt(count)) << name;
    EXPECT_NEAR(own.mean().item<double>(), 0, 0.5 / std::sqrt(count)) << name;
  }
}

// The layer that has the replaced child is computed of its modules, the others as ever.
TEST(BertClassifier, ReplacedChildrenAreComputed) {
  torch::manual_seed(21);
  BertClassifier model(small(2, 16)), plain = copy_of(model, at::kFloat);
  const std::string path = "bert.encoder.layer.1.intermediate.dense";
  const auto old = std::dynamic_pointer_cast<torch::nn::LinearImpl>(find_module(*model, path));
  torch::nn::Linear other(old->options);
  {
    const at::NoGradGuard no_grad;
    other->weight.copy_(old->weight);
    other->bias.copy_(old->bias);
  }
  replace_child(*model, path, other);
  const Batch whole = padded(true);
  for (const Batch& batch : {whole, packed(padded(false))}) {
    expect_close(logits_of(model, batch), logits_of(plain, batch), 1e-5, "logits");
    const auto found = gradients_of(model, batch), expected = gradients_of(plain, batch);
    const auto names = plain->named_parameters().keys();
    ASSERT_EQ(model->named_parameters().keys(), names);
    for (size_t i = 0; i < names.size(); ++i) expect_close(found[i], expected[i], 1e-5, names[i]);
  }
  const at::Tensor before = logits_of(model, whole);
  const at::NoGradGuard no_grad;
  other->weight.mul_(2);
  plain->named_parameters()[path + ".weight"].mul_(2);
  expect_close(logits_of(model, whole), logits_of(plain, whole), 1e-5, "other weights");
  EXPECT_FALSE(torch::allclose(logits_of(model, whole), before));
  // Between two layers in bfloat16.
  const amp::Autocast autocast(at::kCPU, at::kBFloat16);
  expect_close(logits_of(model, whole), logits_of(plain, whole), 0.05, "bfloat16");
}

TEST(BertClassifier, WrapsEveryLayerOfItsOwn) {
  torch::manual_seed(22);
  BertClassifier model(small(2, 8));
  const Batch batch = padded(true);
  const at::Tensor plain = logits_of(model, batch);
  std::set<std::string> wrapped, called;
  for (const auto& item : model->named_modules("", false)) {
    const std::string path = item.key();
    if (item.value()->parameters(/*recurse=*/false).empty()) continue;
    wrapped.insert(path);
    wrap_forward(*model, path, [&called, path](const Forward& forward, const at::Tensor& input) {
      called.insert(path);
      return forward(input);
    });
  }
  expect_close(logits_of(model, batch), plain, 1e-5, "wrapped");
  EXPECT_EQ(called, wrapped);
  EXPECT_GT(wrapped.size(), 20u);
}

TEST(BertClassifier, DropsTheSameAroundHooks) {
  torch::manual_seed(25);
  BertClassifier model(small(2, 16, 0.3));
  const Batch batch = packed(padded(false));
  const auto run = [&] {
    torch::manual_seed(9);
    return gradients_of(model, batch);
  };
  const auto expected = run();
  for (const char* name : {"attention.self.value", "attention.output.LayerNorm", "output.dense"})
    wrap_forward(*model, std::string("bert.encoder.layer.1.") + name,
                 [](const Forward& forward, const at::Tensor& x) { return forward(x); });
  const auto found = run();
  const auto names = model->named_parameters().keys();
  for (size_t i = 0; i < names.size(); ++i) expect_close(found[i], expected[i], 1e-5, names[i]);
}

TEST(BertClassifier, RefusesWhatHooksGiveThatDoesNotFit) {
  for (const auto& [name, dim] : {std::pair{"attention.self.key", 1},
                                  {"attention.self.query", 0},
                                  {"attention.output.dense", 1},
                                  {"intermediate.dense", 0}}) {
    BertClassifier model(small(2, 16));
    wrap_forward(*model, std::string("bert.encoder.layer.1.") + name,
                 [dim = dim](const Forward& forward, const at::Tensor& x) {
                   return forward(x).narrow(dim, 0, 3);
                 });
    EXPECT_THROW(logits_of(model, padded(false)), InvalidArgument) << name;
  }
}

// Units called one by one, or with hooks around them, are the model, in every bit.
TEST(BertClassifier, IsItsUnits) {
  torch::manual_seed(24);
  BertClassifier model(small(2, 16, 0.2));
  EXPECT_EQ(
      model->unit_names(),
      (std::vector<std::string>{"bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1",
                                "bert.encoder.layer.2", "bert.pooler"}));
  const auto run = [&](const Batch& batch, bool by_units) {
    torch::manual_seed(9);  // dropout
    model->zero_grad();
    at::Tensor logits;
    if (by_units) {
      const BertPass pass = model->pass(batch.ids, batch.mask, batch.types, batch.lengths);
      at::Tensor rows = BertClassifierImpl::ids_of(pass);
      for (const auto& unit : model->units()) rows = unit->forward(rows, pass);
      logits = model->classify(rows);
    } else {
      logits = logits_of(model, batch);
    }
    logits.square().sum().backward();
    std::vector<at::Tensor> all{logits.detach()};
    for (const at::Tensor& p : model->parameters()) all.push_back(p.grad().clone());
    return all;
  };
  for (const bool bfloat16 : {false, true}) {
    std::optional<amp::Autocast> autocast;
    if (bfloat16) autocast.emplace(at::kCPU, at::kBFloat16);
    for (const Batch& batch : {padded(true), packed(padded(false))}) {
      const auto expected = run(batch, false), found = run(batch, true);
      std::vector<HookHandle> hooks;
      std::vector<std::string> called;
      for (const std::string& name : model->unit_names())
        hooks.push_back(wrap_forward(
            *model, name, [&called, name](const Forward& forward, const at::Tensor& rows) {
              called.push_back(name);
              return forward(rows);
            }));
      const auto hooked = run(batch, false);
      EXPECT_EQ(called, model->unit_names());
      for (HookHandle& hook : hooks) hook.remove();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << bfloat16 << " " << i;
        EXPECT_TRUE(at::equal(hooked[i], expected[i])) << bfloat16 << " " << i;
      }
    }
  }
  const BertPass pass = model->pass(padded(false).ids);
  EXPECT_THROW(model->units()[1]->forward(at::zeros({3, 16}), pass), InvalidArgument);
  EXPECT_THROW(model->units()[0]->forward(at::zeros({3}, at::kLong), pass), InvalidArgument);
  // What a hook gives need not lie as the fused layers want it.
  model->eval();
  const Batch batch = padded(true);
  const at::Tensor plain = logits_of(model, batch);
  wrap_forward(*model, "bert.encoder.layer.0", [](const Forward& forward, const at::Tensor& rows) {
    return forward(rows).t().contiguous().t().to(at::kDouble);
  });
  EXPECT_TRUE(at::equal(logits_of(model, batch), plain));
  for (const char* inner : {"attention.self.query", "attention.self.value",
                            "attention.output.dense", "intermediate.dense", "output.dense"}) {
    HookHandle hook = wrap_forward(*model, "bert.encoder.layer.1." + std::string(inner),
                                   [](const Forward& forward, const at::Tensor& rows) {
                                     return forward(rows).t().contiguous().t();
                                   });
    EXPECT_LT((logits_of(model, batch) - plain).abs().max().item<double>(), 1e-5) << inner;
    hook.remove();
  }
}

TEST(BertClassifier, FollowsReplaceModule) {
  torch::manual_seed(23);
  BertClassifier model(small(2, 8));
  const Batch batch = padded(true);
  const auto parent = find_module(*model, "bert.encoder.layer.0.attention.self");
  torch::nn::Linear other(16, 16);
  const at::Tensor before = logits_of(model, batch);
  parent->replace_module("query", other);
  EXPECT_FALSE(torch::allclose(logits_of(model, batch), before));
  loss_of(model, batch).backward();
  EXPECT_TRUE(other->weight.grad().defined());
  // Around what a hook only watches, too; and outside of the layers.
  wrap_forward(*model, "bert.encoder.layer.0.attention.self.query",
               [](const Forward& forward, const at::Tensor& x) { return forward(x); });
  torch::nn::Linear third(16, 16), pooler(16, 16), classifier(16, 3);
  parent->replace_module("query", third);
  find_module(*model, "bert.pooler")->replace_module("dense", pooler);
  model->replace_module("classifier", classifier);
  model->zero_grad();
  loss_of(model, batch).backward();
  for (const auto& one : {third, pooler, classifier}) EXPECT_TRUE(one->weight.grad().defined());
  const std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> wrong{
      {"query", torch::nn::Linear(16, 8).ptr()},
      {"key", torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)).ptr()},
      {"value", torch::nn::ReLU().ptr()}};
  for (const auto& [name, module] : wrong) {
    const auto former = parent->named_children()[name];
    parent->replace_module(name, module);
    EXPECT_THROW(logits_of(model, batch), InvalidArgument) << name;
    parent->replace_module(name, former);
  }
  logits_of(model, batch);
  // Once more where something was replaced, by another shape.
  for (const int64_t classes : {3, 5, 4}) {
    replace_child(*model, "classifier", torch::nn::Linear(16, classes));
    EXPECT_EQ(logits_of(model, batch).size(1), classes);
  }
  // Where a replaced child stays behind at to().
  replace_child(*model, "bert.embeddings.word_embeddings", torch::nn::Embedding(60, 16));
  model->to(at::kDouble);
  EXPECT_EQ(logits_of(model, batch).scalar_type(), at::kDouble);
}

TEST(BertClassifier, RefusesWhatIsOutsideOfItsTables) {
  BertClassifier model(small(2, 16));
  Batch batch = padded(false);
  batch.ids[1][2] = 60;
  EXPECT_THROW(logits_of(model, batch), InvalidArgument);
  batch.ids[1][2] = -1;
  EXPECT_THROW(logits_of(model, batch), InvalidArgument);
  batch.ids[1][2] = 0;
  batch.types[0][0] = 2;
  EXPECT_THROW(logits_of(model, batch), InvalidArgument);
  const at::Tensor ids = torch::ones({2, 41}, at::kLong);
  EXPECT_THROW(model->forward(ids), InvalidArgument);
  EXPECT_THROW(model->forward(ids.to(at::kInt)), InvalidArgument);
  EXPECT_THROW(model->forward(ids.narrow(1, 0, 5), torch::ones({2, 4})), InvalidArgument);
  EXPECT_THROW(model->forward(ids[0], {}, {}, torch::tensor({20, 20}, at::kLong)), InvalidArgument);
  EXPECT_THROW(model->forward(ids[0]), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0
