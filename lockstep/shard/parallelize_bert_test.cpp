#include "lockstep/shard/parallelize.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <fstream>
#include <map>
#include <string>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/hooks/thread_generator.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/bert.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::parallelize_bert_test {
namespace {

using ::testing::HasSubstr;

BertConfig small_bert(double dropout = 0, const char* activation = "gelu") {
  BertConfig config;
  config.vocab_size = 61;  // 4 parts have 15 or 16 words
  config.hidden_size = 32;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.intermediate_size = 44;
  config.max_position_embeddings = 40;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout;
  config.classifier_dropout = dropout / 2;
  config.initializer_range = 0.2;
  config.hidden_act = activation;
  config.pad_token_id = 36;  // the second of two parts has it
  config.labels = {"a", "b", "c"};
  return config;
}

BertClassifier made_bert(const BertConfig& config, at::ScalarType type = at::kDouble) {
  torch::manual_seed(3);
  BertClassifier model(config);
  const at::NoGradGuard no_grad;  // biases of 0 and norms of 1 would hide what is left out
  for (at::Tensor& parameter : model->parameters())
    if (parameter.dim() == 1) parameter.add_(torch::randn_like(parameter), 0.2);
  model->to(type);
  return model;
}

// The same values, of the same type; training.
BertClassifier copy_of(const BertClassifier& whole) {
  BertClassifier copy(whole->config(), InitialParameters::kNone);
  copy->to(whole->parameters()[0].scalar_type());
  const at::NoGradGuard no_grad;
  auto to = copy->parameters();
  const auto from = whole->parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  return copy;
}

TensorParts divided(BertClassifier& model, const Communicator& comm) {
  return parallelize(*model, comm, bert_tensor_plan(model->config()));
}

// A generator of this thread's: threads share the default one. Of other parts than the first it stands elsewhere.
class OwnGenerator {
 public:
  OwnGenerator(uint64_t seed, const Communicator& comm)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(seed + 100 * comm.rank())),
        current_([this]() -> const at::Generator& { return generator_; }) {}

 private:
  at::Generator generator_;
  hooks::ThreadGenerator current_;
};

struct Texts {
  at::Tensor ids, mask = {}, types = {}, lengths = {}, labels;
};

// Padded; the tokens' types differ.
Texts padded_texts(int64_t step = 0, bool holes = false) {
  Texts texts;
  texts.ids = (torch::arange(4 * 9, at::kLong) * 17 + step * 11).pow(2).remainder(61).view({4, 9});
  texts.types = texts.ids.remainder(2);
  texts.mask = torch::ones({4, 9}, at::kLong);
  texts.mask[1].narrow(0, 4, 5).zero_();
  if (holes) texts.mask[0][3] = 0;
  texts.labels = (torch::arange(4, at::kLong) + step).remainder(3);
  return texts;
}

// The same sequences without their padding.
Texts packed_texts(int64_t step = 0) {
  const Texts texts = padded_texts(step);
  const at::Tensor seen = texts.mask.to(at::kBool);
  return {texts.ids.masked_select(seen),
          {},
          texts.types.masked_select(seen),
          texts.mask.sum(1),
          texts.labels};
}

at::Tensor loss_of(BertClassifier& model, const Texts& texts) {
  return torch::nn::functional::cross_entropy(
      model->forward(texts.ids, texts.mask, texts.types, texts.lengths), texts.labels);
}

double away(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), 1e-30);
}

at::Tensor sliced(const at::Tensor& whole, const PartSlice& slice) {
  return slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

using Values = std::map<std::string, at::Tensor>;
Values parameters_now(const BertClassifier& model) {
  Values values;
  for (const auto& item : model->named_parameters())
    values[item.key()] = item.value().detach().clone();
  return values;
}
Values gradients_now(const BertClassifier& model) {
  Values values;
  for (const auto& item : model->named_parameters())
    values[item.key()] = item.value().grad().clone();
  return values;
}

void expect_parts(const Values& mine, const Values& whole, const TensorParts& parts,
                  double tolerance) {
  ASSERT_EQ(mine.size(), whole.size());
  for (const auto& [name, value] : mine) {
    const at::Tensor expected = sliced(whole.at(name), parts.slice(name));
    // A key's bias moves all scores of a query alike, which changes nothing: its gradient is rounding around 0.
    if (name.ends_with("key.bias"))
      EXPECT_LT((value - expected).abs().max().item<double>(), tolerance) << name;
    else
      EXPECT_LT(away(value, expected), tolerance) << name;
  }
}

TEST(ParallelizedBert, LogitsAndGradientsAreTheWholes) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
    for (const char* activation : {"gelu", "gelu_new", "relu"}) {
      BertClassifier whole = made_bert(small_bert(0, activation), type);
      for (const Texts& texts : {padded_texts(), padded_texts(0, true), packed_texts()}) {
        whole->zero_grad();
        const at::Tensor loss = loss_of(whole, texts);
        loss.backward();
        const at::Tensor logits =
            whole->forward(texts.ids, texts.mask, texts.types, texts.lengths).detach();
        const Values gradients = gradients_now(whole);
        for (const int size : {1, 2, 4}) {
          testing::run_threads(size, [&, tolerance = tolerance](Communicator& comm) {
            BertClassifier model = copy_of(whole);
            const TensorParts parts = divided(model, comm);
            const at::Tensor mine = loss_of(model, texts);
            EXPECT_LT(away(mine, loss), tolerance);
            mine.backward();
            expect_parts(gradients_now(model), gradients, parts, tolerance);
            EXPECT_LT(
                away(model->forward(texts.ids, texts.mask, texts.types, texts.lengths), logits),
                tolerance);
          });
        }
      }
    }
  }
}

// Three steps with dropout, of which every mask is one process's. In float32 by SGD: Adam moves what is rounding alone.
TEST(ParallelizedBert, FineTuningWithDropoutEndsWhereTheWholeEnds) {
  constexpr int64_t kSteps = 3;
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
    const auto train = [type = type](BertClassifier& model) {
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (type == at::kDouble)
        optimizer = std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                          torch::optim::AdamWOptions(1e-3));
      else
        optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                        torch::optim::SGDOptions(0.02));
      std::vector<double> losses;
      for (int64_t step = 0; step < kSteps; ++step) {
        optimizer->zero_grad();
        const at::Tensor loss =
            loss_of(model, step % 2 == 0 ? padded_texts(step) : packed_texts(step));
        loss.backward();
        optimizer->step();
        losses.push_back(loss.item<double>());
      }
      return losses;
    };
    BertClassifier start = made_bert(small_bert(0.3), type), one = made_bert(small_bert(0.3), type);
    torch::manual_seed(9);
    const std::vector<double> losses = train(one);
    const Values end = parameters_now(one);
    start->eval();
    EXPECT_GT(std::abs(loss_of(start, padded_texts()).item<double>() - losses[0]), 1e-3);
    start->train();
    for (const int size : {2, 4}) {
      testing::run_threads(size, [&, tolerance = tolerance](Communicator& comm) {
        BertClassifier model = copy_of(start);
        const TensorParts parts = divided(model, comm);
        const OwnGenerator generator(9, comm);
        const std::vector<double> mine = train(model);
        for (size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], losses[i], tolerance * 10);
        expect_parts(parameters_now(model), end, parts, tolerance * 10);
      });
    }
  }
}

// Masks of 0.5 over ones: whatever is kept is what one process keeps.
TEST(ParallelizedBert, MasksAreOneProcesssInEveryBit) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    BertClassifier whole = made_bert(small_bert(0.5), type);
    const auto dropped = [](BertClassifier& model) {
      const Texts texts = padded_texts();
      const BertPass pass = model->pass(texts.ids, texts.mask, texts.types);
      const at::Tensor rows = model->units()[0]->forward(BertClassifierImpl::ids_of(pass), pass);
      return rows.detach().eq(0);
    };
    torch::manual_seed(4);
    const at::Tensor expected = dropped(whole);
    EXPECT_GT(expected.sum().item<int64_t>(), 400);
    testing::run_threads(4, [&](Communicator& comm) {
      BertClassifier model = copy_of(whole);
      divided(model, comm);
      const OwnGenerator generator(4, comm);
      EXPECT_TRUE(at::equal(dropped(model), expected));
    });
  }
}

// A query that was replaced before the model was divided knows which heads its part has.
TEST(ParallelizedBert, AReplacedQueryDropsItsOwnHeads) {
  const std::string name = "bert.encoder.layer.0.attention.self.query";
  const auto rows_of = [](BertClassifier& model) {
    const Texts texts = padded_texts();
    const BertPass pass = model->pass(texts.ids, texts.mask, texts.types);
    const at::Tensor words =
        model->units()[0]->forward(BertClassifierImpl::ids_of(pass), pass).detach();
    return model->units()[1]->forward(words, pass).detach();
  };
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
    BertConfig config = small_bert();
    config.attention_probs_dropout_prob = 0.5;
    const auto replaced = [&, type = type](BertClassifier model) {
      torch::nn::Linear query(32, 32);
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : query->parameters())
        parameter.copy_(torch::arange(parameter.numel()).view_as(parameter).sin() / 4);
      query->to(type);
      replace_child(*model, name, query);
      return model;
    };
    BertClassifier start = made_bert(config, type), whole = replaced(copy_of(start));
    torch::manual_seed(5);
    const at::Tensor expected = rows_of(whole);
    testing::run_threads(2, [&, tolerance = tolerance](Communicator& comm) {
      BertClassifier model = replaced(copy_of(start));
      divided(model, comm);
      const OwnGenerator generator(5, comm);
      EXPECT_LT(away(rows_of(model), expected), tolerance);
    });
  }
}

// Layers that are computed again in backward meet the other parts' again, and draw the same.
TEST(ParallelizedBert, LayersMayBeComputedAgain) {
  BertClassifier whole = made_bert(small_bert(0.2));
  const Texts texts = padded_texts();
  torch::manual_seed(6);
  const at::Tensor loss = loss_of(whole, texts);
  loss.backward();
  const Values gradients = gradients_now(whole);
  testing::run_threads(2, [&](Communicator& comm) {
    BertClassifier model = copy_of(whole);
    const TensorParts parts = divided(model, comm);
    checkpoint_layers<BertUnit::Signature>(*model, {.names = {"bert.encoder.layer.*"}});
    const OwnGenerator generator(6, comm);
    const at::Tensor mine = loss_of(model, texts);
    EXPECT_LT(away(mine, loss), 1e-10);
    mine.backward();
    expect_parts(gradients_now(model), gradients, parts, 1e-10);
  });
}

TEST(ParallelizedBert, InBFloat16ItIsNearTheWhole) {
  BertClassifier whole = made_bert(small_bert(), at::kFloat);
  const Texts texts = packed_texts();
  const at::Tensor loss = loss_of(whole, texts);
  loss.backward();
  const Values gradients = gradients_now(whole);
  testing::run_threads(2, [&](Communicator& comm) {
    BertClassifier model = copy_of(whole);
    const TensorParts parts = divided(model, comm);
    at::Tensor mine;
    {
      const amp::Autocast autocast(amp::AutocastSettings{});
      mine = loss_of(model, texts);
    }
    mine.backward();
    EXPECT_LT(away(mine, loss), 0.05);
    for (const auto& [name, found] : gradients_now(model)) {
      const at::Tensor expected = sliced(gradients.at(name), parts.slice(name));
      if (name.ends_with("key.bias")) continue;
      EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 0.2) << name;
    }
  });
}

// Beside data parallelism; then the parts make a directory that transformers opens, as any other model.
TEST(ParallelizedBert, PartsPutTogetherAreTransformersFiles) {
  const BertConfig config = small_bert();
  BertClassifier one = made_bert(config, at::kFloat), start = made_bert(config, at::kFloat);
  const torch::optim::SGDOptions sgd(0.05);
  torch::optim::SGD optimizer(one->parameters(), sgd);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(one, padded_texts(step)).backward();
    optimizer.step();
  }
  const TestDirectory directory;
  testing::run_threads(4, [&](Communicator& comm) {
    const Mesh mesh(comm, {{"data", 2}, {"tensor", 2}});
    BertClassifier model = copy_of(start);
    TensorParts parts = parallelize(*model, mesh["tensor"], bert_tensor_plan(config));
    DistributedDataParallel ddp(model, mesh["data"]);
    torch::optim::SGD mine(model->parameters(), sgd);
    const int64_t row = 2 * mesh.place("data");
    for (int64_t step = 0; step < 3; ++step) {
      const Texts texts = padded_texts(step);
      const auto of = [&](const at::Tensor& tensor) { return tensor.narrow(0, row, 2); };
      mine.zero_grad();
      torch::nn::functional::cross_entropy(
          ddp->forward(of(texts.ids), of(texts.mask), of(texts.types), at::Tensor()),
          of(texts.labels))
          .backward();
      mine.step();
    }
    NamedTensors whole = parts.gather(parameters_of(model));
    if (comm.rank() != 0) return;
    write_safetensors(directory / "model.safetensors", whole);
    std::ofstream(directory / "config.json") << to_json(config);
  });
  BertClassifier opened = load_bert(directory.path(), config.labels);
  const Values expected = parameters_now(one), found = parameters_now(opened);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : found) EXPECT_LT(away(value, expected.at(name)), 1e-5) << name;
}

TEST(ParallelizedBert, PartsAreFilledWithoutAWhole) {
  const BertConfig config = small_bert();
  const Values values = parameters_now(made_bert(config, at::kFloat));
  testing::run_threads(4, [&](Communicator& comm) {
    BertClassifier model(config, InitialParameters::kNone);
    const TensorParts parts = divided(model, comm);
    parts.fill(parameters_of(model),
               [&](const std::string& name, int64_t begin, const at::Tensor& part) {
                 part.copy_(values.at(name).view({-1}).narrow(0, begin, part.numel()));
               });
    for (const auto& [name, value] : parameters_now(model))
      EXPECT_TRUE(at::equal(value, sliced(values.at(name), parts.slice(name)))) << name;
  });
}

// Rows are summed twice a layer each way and once for the embeddings; of the last layer on the way out the sequences'
// first alone, on the way back the queries' apart from those of keys and values.
TEST(ParallelizedBert, WhatIsSentIsWhatTheorySays) {
  BertClassifier whole = made_bert(small_bert());
  testing::run_threads(2, [&](Communicator& comm) {
    BertClassifier model = copy_of(whole);
    divided(model, comm);
    const uint64_t broadcasts = comm.stats().of(Op::kBroadcast).calls;
    const auto bytes = [&] { return comm.stats().of(Op::kAllReduce).bytes; };
    const uint64_t before = bytes();
    const at::Tensor loss = loss_of(model, padded_texts());
    constexpr uint64_t kRow = 32 * sizeof(double), kTokens = 36, kFirst = 4;
    EXPECT_EQ(bytes() - before, (5 * kTokens + 2 * kFirst) * kRow);
    const uint64_t between = bytes();
    loss.backward();
    EXPECT_EQ(bytes() - between, (5 * kTokens + 2 * kFirst) * kRow);
    EXPECT_EQ(comm.stats().of(Op::kBroadcast).calls, broadcasts);  // nothing drops
  });
}

// In float32 by the nodes, hooks around modules that are divided and around those that are not.
TEST(ParallelizedBert, TakesHooksWithinItsLayers) {
  BertClassifier whole = made_bert(small_bert(), at::kFloat);
  const Texts texts = packed_texts();
  const at::Tensor loss = loss_of(whole, texts);
  testing::run_threads(2, [&](Communicator& comm) {
    BertClassifier model = copy_of(whole);
    divided(model, comm);
    int calls = 0;
    for (const char* name :
         {"attention.self.key", "attention.output.LayerNorm", "intermediate.dense", "output.dense"})
      wrap_forward(*model, std::string("bert.encoder.layer.1.") + name,
                   [&calls](const Forward& forward, const at::Tensor& x) {
                     ++calls;
                     return forward(x);
                   });
    EXPECT_LT(away(loss_of(model, texts), loss), 1e-5);
    EXPECT_EQ(calls, 4);
  });
}

TEST(ParallelizedBert, MistakesAreOneLine) {
  const auto line = [](const auto& call) {
    const std::string text = message_of<InvalidArgument>(call);
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  };
  testing::run_threads(3, [&](Communicator& comm) {
    BertClassifier model = made_bert(small_bert());
    EXPECT_THAT(line([&] { divided(model, comm); }),
                HasSubstr("has 4 heads, which do not divide among 3 parts"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
  BertClassifier whole = made_bert(small_bert());
  testing::run_threads(2, [&](Communicator& comm) {
    BertClassifier model = copy_of(whole);
    divided(model, comm);
    const uint64_t before = comm.stats().collectives;
    EXPECT_THAT(line([&] { model->forward(at::full({1, 4}, 61, at::kLong)); }),
                HasSubstr("was given the id 61, and has 61 rows"));
    EXPECT_EQ(comm.stats().collectives, before);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::parallelize_bert_test
