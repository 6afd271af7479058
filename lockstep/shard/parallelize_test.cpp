#include "lockstep/shard/parallelize.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/plain_models.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/shard/context_scope.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::parallelize_test {
namespace {

using plain::Encoder;
using plain::Gpt;
using plain::Vision;
using ::testing::AllOf;
using ::testing::HasSubstr;

const TensorRule kWordsRule{"layers.0.words", TensorStyle::kVocabulary};

// Of all plain models.
TensorPlan plan_of_plain(const std::vector<TensorRule>& more = {}) {
  std::vector<TensorRule> rules{{"layers.*.attention.query", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.key", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.value", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.mix", TensorStyle::kRow},
                                {"layers.*.up", TensorStyle::kColumn},
                                {"layers.*.down", TensorStyle::kRow},
                                {"layers.*.head", TensorStyle::kVocabulary}};
  rules.insert(rules.end(), more.begin(), more.end());
  return TensorPlan(rules);
}

// The same on every thread, without a generator.
template <typename M>
M with_values(M model) {
  const at::NoGradGuard no_grad;
  model->to(at::kDouble);
  int64_t begin = 1;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.copy_(torch::arange(begin, begin + parameter.numel(), at::kDouble)
                        .mul(1.3)
                        .sin()
                        .mul(0.2)
                        .view(parameter.sizes()));
    begin += 7;
  }
  return model;
}

at::Tensor ids_of(int64_t step, int64_t rows = 4) {
  return (torch::arange(rows * 8, at::kLong) * 7 + step)
      .pow(2)
      .remainder(plain::kWords)
      .view({rows, 8});
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, plain::kWords}),
                                              targets.reshape({-1}));
}

struct Trained {
  std::vector<double> losses;
  NamedTensors parameters;
};

const auto kDescent = torch::optim::SGDOptions(0.1).momentum(0.9);
// Where some gradients are zero but for rounding, Adam would make as much of them as of any.
std::unique_ptr<torch::optim::Optimizer> descent(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, kDescent);
}

// Steps on what `inputs` gives.
template <typename M>
std::vector<double> train(M& model, const std::function<at::Tensor(int64_t)>& inputs,
                          const std::function<void()>& clip = {}) {
  const auto optimizer = descent(model->parameters());
  std::vector<double> losses;
  for (int64_t step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    const at::Tensor logits = model->forward(inputs(step));
    const at::Tensor loss =
        loss_of(logits, ids_of(step + 1).flatten().slice(0, 0, logits.numel() / plain::kWords));
    loss.backward();
    if (clip) clip();
    optimizer->step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

template <typename Make>
void expect_one_process(const Make& make, const TensorPlan& plan,
                        const std::function<at::Tensor(int64_t)>& inputs) {
  auto whole = with_values(make());
  const std::vector<double> expected = train(whole, inputs);
  const NamedTensors values = parameters_of(whole);
  for (const int size : {1, 2, 4}) {
    testing::run_threads(size, [&](Communicator& comm) {
      auto model = with_values(make());
      TensorParts parts =
          parallelize(*model, comm, plan, {.probe = [&] { model->forward(inputs(0)); }});
      const std::vector<double> losses = train(model, inputs);
      for (size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], expected[i], 1e-12) << "step " << i << " of " << size << " parts";
      const NamedTensors all = parts.gather(parameters_of(model));
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(at::allclose(all[i].second, values[i].second, 0, 1e-10))
            << all[i].first << " of " << size << " parts";
    });
  }
}

TEST(Parallelize, ADecoderOfLibtorchsModulesTrainsAsInOneProcess) {
  expect_one_process([] { return Gpt(); }, plan_of_plain({kWordsRule}),
                     [](int64_t step) { return ids_of(step); });
}

TEST(Parallelize, WordsMayBeTheHeadsToo) {
  expect_one_process([] { return Gpt(/*is_tied=*/true); }, plan_of_plain({kWordsRule}),
                     [](int64_t step) { return ids_of(step); });
}

TEST(Parallelize, AnEncoderWhoseWordsHaveAPaddingTrainsAsInOneProcess) {
  expect_one_process([] { return Encoder(); }, plan_of_plain({kWordsRule}),
                     [](int64_t step) { return ids_of(step); });
}

TEST(Parallelize, AVisionTransformerTrainsAsInOneProcess) {
  expect_one_process(
      [] { return Vision(); }, plan_of_plain(),
      [](int64_t step) {
        return torch::arange(4 * 3 * 64, at::kDouble).mul(0.7).add(step).sin().view({4, 3, 8, 8});
      });
}

// Of rows: where they are divided, and how.
struct Rows {
  int tensor = 1, context = 1;
  bool by_parts = false;
  ContextWay way = ContextWay::kRing;
};

// `own_inputs`, `own_targets`: the model is given this rank's tokens; its loss is that of this rank's tokens.
template <typename Make>
void expect_one_process_by_rows(const Make& make, const TensorPlan& plan,
                                const std::function<at::Tensor(int64_t)>& inputs, const Rows& how,
                                bool own_inputs, bool own_targets) {
  auto whole = with_values(make());
  const std::vector<double> expected = train(whole, inputs);
  const NamedTensors values = parameters_of(whole);
  testing::run_threads(how.tensor * how.context, [&](Communicator& comm) {
    const Mesh mesh(comm, {{"context", how.context}, {"tensor", how.tensor}});
    Communicator& context = mesh["context"];
    auto model = with_values(make());
    TensorParts parts = parallelize(*model, mesh["tensor"], plan,
                                    {.divides_rows = how.by_parts, .context = context});
    const ContextScope scope(context, how.way);
    const auto optimizer = descent(model->parameters());
    for (int64_t step = 0; step < 5; ++step) {
      optimizer->zero_grad();
      const at::Tensor given = inputs(step);
      const at::Tensor logits = model->forward(own_inputs ? own_tokens(context, given) : given);
      at::Tensor targets = ids_of(step + 1);
      if (own_targets)
        targets = own_tokens(context, targets);
      else
        targets = targets.flatten().slice(0, 0, logits.numel() / plain::kWords);
      const at::Tensor loss = loss_of(logits, targets);
      loss.backward();
      average_gradients(parameters_of(model), context);
      optimizer->step();
      const at::Tensor mean = loss.detach().clone();
      context.all_reduce(mean, ReduceOp::kAvg);
      EXPECT_NEAR(mean.item<double>(), expected[static_cast<size_t>(step)], 1e-12)
          << "step " << step;
    }
    const NamedTensors all = parts.gather(parameters_of(model));
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(at::allclose(all[i].second, values[i].second, 0, 1e-10)) << all[i].first;
  });
}

const std::vector<Rows> kRowsOfTokens{{.tensor = 2, .by_parts = true},
                                      {.tensor = 4, .by_parts = true},
                                      {.context = 2},
                                      {.context = 2, .way = ContextWay::kHeads},
                                      {.context = 4},
                                      {.tensor = 2, .context = 2},
                                      {.tensor = 2, .context = 2, .by_parts = true}};

TEST(Parallelize, RowsOfADecoderAreDividedAlongTensorAndContext) {
  const TensorPlan plan = plan_of_plain({kWordsRule,
                                         {"layers.0.positions", TensorStyle::kPositions},
                                         {"layers.*.norm1", TensorStyle::kRows},
                                         {"layers.*.norm2", TensorStyle::kRows},
                                         {"layers.3.norm", TensorStyle::kRows}});
  for (const Rows& how : kRowsOfTokens)
    expect_one_process_by_rows([] { return Gpt(); }, plan,
                               [](int64_t step) { return ids_of(step); }, how,
                               /*own_inputs=*/true, /*own_targets=*/true);
}

// The first token alone is looked at behind the last norm.
TEST(Parallelize, RowsOfAnEncoderEndBeforeItsPooling) {
  const TensorPlan plan = plan_of_plain({kWordsRule,
                                         {"layers.0.positions", TensorStyle::kPositions},
                                         {"layers.2.norm2", TensorStyle::kRowsEnd},
                                         {"layers.*.norm1", TensorStyle::kRows},
                                         {"layers.*.norm2", TensorStyle::kRows}});
  for (const Rows& how : kRowsOfTokens)
    if (how.tensor * how.context <= 4)
      expect_one_process_by_rows([] { return Encoder(); }, plan,
                                 [](int64_t step) { return ids_of(step); }, how,
                                 /*own_inputs=*/true, /*own_targets=*/false);
}

TEST(Parallelize, RowsOfAVisionTransformerBeginBehindItsPatches) {
  const TensorPlan plan = plan_of_plain({{"layers.0.norm", TensorStyle::kRowsBegin},
                                         {"layers.2.norm2", TensorStyle::kRowsEnd},
                                         {"layers.*.norm1", TensorStyle::kRows},
                                         {"layers.*.norm2", TensorStyle::kRows}});
  for (const Rows& how : {Rows{.tensor = 2, .by_parts = true}, Rows{.context = 2},
                          Rows{.tensor = 2, .context = 2, .by_parts = true}})
    expect_one_process_by_rows(
        [] { return Vision(); }, plan,
        [](int64_t step) {
          return torch::arange(4 * 3 * 64, at::kDouble).mul(0.7).add(step).sin().view({4, 3, 8, 8});
        },
        how, /*own_inputs=*/false, /*own_targets=*/false);
}

TEST(Parallelize, PlansThatWouldBeMisunderstoodAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto refusal = [&](const std::vector<TensorRule>& rules, bool divides_rows) {
      return message_of<InvalidArgument>([&] {
        parallelize(*with_values(Encoder()), comm, TensorPlan(rules),
                    {.divides_rows = divides_rows});
      });
    };
    EXPECT_THAT(
        refusal({{"layers.*.norm2", TensorStyle::kRows}, {"layers.2.norm2", TensorStyle::kRowsEnd}},
                false),
        HasSubstr("'layers.2.norm2' (rows end) stands behind rules that mean all of its"));
    EXPECT_THAT(refusal({{"layers.1.norm2", TensorStyle::kRowsEnd},
                         {"layers.2.up", TensorStyle::kColumn},
                         {"layers.2.down", TensorStyle::kRow}},
                        true),
                HasSubstr("'layers.2.up' (column) stands behind 'layers.1.norm2', where rows end"));
    torch::nn::Sequential words(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 4).scale_grad_by_freq(true)));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  parallelize(*words, comm, TensorPlan({{"0", TensorStyle::kVocabulary}}));
                }),
                HasSubstr("scales its gradients by frequency"));
  });
}

struct SharedNormImpl : torch::nn::Module {
  SharedNormImpl()
      : norm(register_module("norm", plain::BlockImpl::norm())),
        same(register_module("same", norm)) {}
  at::Tensor forward(const at::Tensor& x) { return same(norm(x)); }
  torch::nn::LayerNorm norm, same;
};
TORCH_MODULE(SharedNorm);

TEST(Parallelize, AModuleOfTwoNamesAddsUpItsGradientOnce) {
  const at::Tensor rows = torch::arange(8 * plain::kWidth, at::kDouble).sin().view({1, 8, -1});
  auto whole = with_values(SharedNorm());
  whole->forward(rows).square().sum().backward();
  testing::run_threads(2, [&](Communicator& comm) {
    auto model = with_values(SharedNorm());
    parallelize(*model, comm,
                TensorPlan({{"norm", TensorStyle::kRows}, {"same", TensorStyle::kRows}}),
                {.divides_rows = true});
    model->forward(rows.narrow(1, 4 * comm.rank(), 4)).square().sum().backward();
    EXPECT_TRUE(at::allclose(model->norm->weight.grad(), whole->norm->weight.grad(), 1e-10));
  });
}

TEST(Parallelize, ACloneAddsItsOwnBias) {
  testing::run_threads(2, [](Communicator& comm) {
    auto model = std::make_shared<torch::nn::LinearImpl>(8, 4);
    torch::nn::Sequential whole(model);
    with_values(whole);
    const at::Tensor x = torch::ones({2, 4}, at::kDouble);
    parallelize(*whole, comm, TensorPlan({{"0", TensorStyle::kRow}}));
    const at::Tensor expected = model->forward(x);
    const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone());
    const at::NoGradGuard no_grad;
    model->bias.add_(100);
    EXPECT_TRUE(at::allclose(clone->forward(x), expected));
  });
}

TEST(Parallelize, RowsThatDoNotDivideAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THAT([&] { own_tokens(comm, torch::zeros({2, 6}, at::kLong)); },
                ::testing::ThrowsMessage<InvalidArgument>(
                    HasSubstr("6 tokens do not divide among 2 ranks along context")));
    auto model = with_values(Gpt());
    EXPECT_THAT(
        [&] { parallelize(*model, comm, plan_of_plain({{"layers.1", TensorStyle::kRowsBegin}})); },
        ::testing::ThrowsMessage<InvalidArgument>(
            AllOf(HasSubstr("'layers.1'"), HasSubstr("style rows begin is not for"))));
    const ContextScope scope(comm);
    const at::Tensor x = torch::ones({1, 2, 4, 8});
    EXPECT_THAT([&] { at::scaled_dot_product_attention(x, x, x, torch::ones({4, 4})); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("has a mask")));
    EXPECT_THAT([&] { at::scaled_dot_product_attention(x, x, x, {}, 0.1); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("give dropout 0")));
  });
}

TEST(Parallelize, WhatEachPartHasIsItsSlice) {
  testing::run_threads(2, [](Communicator& comm) {
    auto model = with_values(Gpt()), whole = with_values(Gpt());
    // Values are rank 0's.
    if (comm.rank() == 1) {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.zero_();
    }
    const TensorParts parts = parallelize(*model, comm, plan_of_plain({kWordsRule}));
    const auto expected = whole->named_parameters();
    int64_t own = 0, all = 0;
    for (const auto& [name, parameter] : parameters_of(model)) {
      const PartSlice slice = parts.slice(name);
      const at::Tensor& of = expected[name];
      EXPECT_TRUE(at::equal(
          parameter,
          slice.whole() ? of : of.narrow(slice.dim, slice.begin, slice.end - slice.begin)))
          << name;
      EXPECT_TRUE(parameter.is_contiguous() && parameter.requires_grad()) << name;
      own += parameter.numel();
      all += of.numel();
    }
    EXPECT_LT(own, all * 6 / 10);
    EXPECT_EQ(model->layers->at<plain::BlockImpl>(1).up->options.out_features(), 2 * plain::kWidth);
  });
}

// Norms of divided gradients are the whole model's, and one activation is added up for a layer's three products.
TEST(Parallelize, ClipsByTheWholeNormAndAddsUpOncePerRegion) {
  auto whole = with_values(Gpt());
  loss_of(whole->forward(ids_of(0)), ids_of(1)).backward();
  double squares = 0;
  for (const at::Tensor& parameter : whole->parameters())
    squares += parameter.grad().square().sum().item<double>();
  testing::run_threads(2, [&](Communicator& comm) {
    auto model = with_values(Gpt());
    TensorParts parts = parallelize(*model, comm, plan_of_plain({kWordsRule}));
    const uint64_t before = comm.stats().collectives;
    loss_of(model->forward(ids_of(0)), ids_of(1)).backward();
    // Two a layer and way; the words' rows forward, the logits forward and their input's gradient backward.
    EXPECT_EQ(comm.stats().collectives - before, 4u * plain::kLayers + 3);
    EXPECT_NEAR(parts.clip_gradients(parameters_of(model), 1e-3), std::sqrt(squares), 1e-10);
    EXPECT_NEAR(parts.gradient_norm(parameters_of(model)), 1e-3, 1e-6);
  });
}

// Two rows of two parts: each row has half of the batch.
TEST(Parallelize, StandsBesideDataParallelismAndZero) {
  const auto inputs = [](int64_t step) { return ids_of(step); };
  auto whole = with_values(Gpt());
  const std::vector<double> expected = train(whole, inputs);
  for (const bool zero : {false, true}) {
    testing::run_threads(4, [&](Communicator& comm) {
      const Mesh mesh(comm, {{"data", 2}, {"tensor", 2}});
      auto model = with_values(Gpt());
      parallelize(*model, mesh["tensor"], plan_of_plain({kWordsRule}));
      Communicator& data = mesh["data"];
      std::optional<DistributedDataParallel<Gpt>> replica;
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (zero) {
        optimizer = std::make_unique<ZeroOptimizer>(data, parameters_of(model), kDescent,
                                                    ZeroOptions{.stage = 2});
      } else {
        replica.emplace(model, data);
        optimizer = descent(model->parameters());
      }
      for (int64_t step = 0; step < 5; ++step) {
        const auto mine = [&](const at::Tensor& batch) {
          return batch.narrow(0, 2 * data.rank(), 2);
        };
        optimizer->zero_grad();
        const at::Tensor ids = mine(ids_of(step));
        const at::Tensor loss =
            loss_of(replica ? (*replica)(ids) : model->forward(ids), mine(ids_of(step + 1)));
        loss.backward();
        optimizer->step();
        const at::Tensor mean = loss.detach().clone();
        data.all_reduce(mean, ReduceOp::kAvg);
        EXPECT_NEAR(mean.item<double>(), expected[static_cast<size_t>(step)], 1e-10);
      }
    });
  }
}

// ---- what is refused ----

std::string refusal(const std::function<void(Communicator&)>& fn) {
  Mutex mutex;
  std::string text;
  testing::run_threads(2, [&](Communicator& comm) {
    const uint64_t before = comm.stats().collectives;
    const std::string own = message_of<InvalidArgument>([&] { fn(comm); });
    EXPECT_EQ(comm.stats().collectives, before) << "something was sent";
    const MutexLock lock(mutex);
    text = own;
  });
  return text;
}

TEST(Parallelize, RefusesWhatItCannotDivide) {
  EXPECT_THAT(refusal([](Communicator& comm) {
                parallelize(*Vision(), comm,
                            plan_of_plain({{"layers.0.patches", TensorStyle::kColumn}}));
              }),
              AllOf(HasSubstr("patches' is a torch::nn::Conv2dImpl"), HasSubstr("style column")));
  EXPECT_THAT(refusal([](Communicator& comm) {
                parallelize(*Gpt(), comm, plan_of_plain({{"layers.0.words", TensorStyle::kRow}}));
              }),
              HasSubstr("words' is a torch::nn::EmbeddingImpl"));
  EXPECT_THAT(refusal([](Communicator& comm) {
                parallelize(*Gpt(), comm,
                            TensorPlan({{"layers.*.attention.query", TensorStyle::kHeads, 1}}));
              }),
              HasSubstr("has 1 heads for 2 parts"));
  EXPECT_THAT(refusal([](Communicator& comm) {
                parallelize(*Gpt(), comm, TensorPlan({{"blocks.*.up", TensorStyle::kColumn}}));
              }),
              HasSubstr("'blocks.*.up' (column) means no module with parameters"));
  EXPECT_THAT(
      refusal(
          [](Communicator& comm) { parallelize(*Gpt(/*is_tied=*/true), comm, plan_of_plain()); }),
      HasSubstr(
          "'layers.3.head' computes with 'layers.0.words.weight', which is divided otherwise"));
}

TEST(Parallelize, TheProbeFindsWhatDoesNotFollow) {
  const auto probe = [](const TensorPlan& plan, int64_t splits) {
    std::string text;
    testing::run_threads(2, [&](Communicator& comm) {
      Gpt model(/*is_tied=*/false, splits);
      const std::string own = message_of<InvalidArgument>(
          [&] { parallelize(*model, comm, plan, {.probe = [&] { model->forward(ids_of(0)); }}); });
      if (comm.rank() == 0) text = own;
    });
    return text;
  };
  EXPECT_THAT(probe(plan_of_plain(), plain::kHeads),
              AllOf(HasSubstr("behind 'layers.1.attention."), HasSubstr("-1 in a view"),
                    HasSubstr("shape '[4, 8, 4, 8]' is invalid")));
  EXPECT_THAT(probe(TensorPlan({{"layers.*.down", TensorStyle::kRow}}), -1),
              HasSubstr("'layers.1.down' (row) was given 128 columns where this part's are 64"));
  EXPECT_THAT(probe(TensorPlan({{"layers.*.up", TensorStyle::kColumn}}), -1),
              HasSubstr("behind 'layers.1.up'"));
}

TEST(Parallelize, RanksWithOtherPlansAreNamed) {
  EXPECT_THROW(testing::run_threads(2,
                                    [](Communicator& comm) {
                                      auto model = Gpt();
                                      parallelize(*model, comm,
                                                  comm.rank() == 0 ? plan_of_plain()
                                                                   : plan_of_plain({kWordsRule}));
                                    }),
               Mismatch);
}

TEST(Parallelize, AnIdThatNoPartHasIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    auto model = Gpt();
    parallelize(*model, comm, plan_of_plain({kWordsRule}));
    const at::Tensor ids = torch::full({1, 2}, plain::kWords, at::kLong);
    EXPECT_THAT(message_of<InvalidArgument>([&] { model->forward(ids); }),
                HasSubstr("words' was given the id 37, and has 37 rows"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::parallelize_test
