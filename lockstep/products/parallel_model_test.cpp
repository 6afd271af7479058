#include "lockstep/products/parallel_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/model/plain_models.h"
#include "lockstep/shard/context_scope.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::parallel_model_test {
namespace {

using plain::Encoder;
using plain::Gpt;
using plain::Vision;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 8, kSteps = 5;
constexpr double kMaxNorm = 0.5;

std::vector<TensorRule> rules_with(const std::vector<TensorRule>& more) {
  std::vector<TensorRule> rules{{"layers.*.attention.query", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.key", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.value", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.mix", TensorStyle::kRow},
                                {"layers.*.up", TensorStyle::kColumn},
                                {"layers.*.down", TensorStyle::kRow}};
  rules.insert(rules.end(), more.begin(), more.end());
  rules.push_back({"layers.*.norm1", TensorStyle::kRows});
  rules.push_back({"layers.*.norm2", TensorStyle::kRows});
  return rules;
}

// The values are the same in every process, and need no generator.
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

at::Tensor ids_of(int64_t step) {
  return (torch::arange(kRows * 8, at::kLong) * 7 + step)
      .pow(2)
      .remainder(plain::kWords)
      .view({kRows, 8});
}
at::Tensor pictures_of(int64_t step) {
  return torch::arange(kRows * 3 * 64, at::kDouble).mul(0.7).add(step).sin().view({kRows, 3, 8, 8});
}
at::Tensor classes_of(int64_t step) {
  return ids_of(step + 1).select(1, 0).contiguous();
}

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(outputs.reshape({-1, plain::kWords}),
                                              targets.reshape({-1}));
}

struct DecoderCase {
  static Gpt make() { return with_values(Gpt()); }
  static at::Tensor inputs(int64_t step) { return ids_of(step); }
  static at::Tensor targets(int64_t step) { return ids_of(step + 1); }
  static std::vector<TensorRule> rules() {
    return rules_with({{"layers.0.words", TensorStyle::kVocabulary},
                       {"layers.0.positions", TensorStyle::kPositions},
                       {"layers.3.norm", TensorStyle::kRows},
                       {"layers.3.head", TensorStyle::kVocabulary}});
  }
};

struct EncoderCase {
  static Encoder make() { return with_values(Encoder()); }
  static at::Tensor inputs(int64_t step) { return ids_of(step); }
  static at::Tensor targets(int64_t step) { return classes_of(step); }
  static std::vector<TensorRule> rules() {
    return rules_with({{"layers.0.words", TensorStyle::kVocabulary},
                       {"layers.0.positions", TensorStyle::kPositions},
                       {"layers.2.norm2", TensorStyle::kRowsEnd}});
  }
};

struct VisionCase {
  static Vision make() { return with_values(Vision()); }
  static at::Tensor inputs(int64_t step) { return pictures_of(step); }
  static at::Tensor targets(int64_t step) { return classes_of(step); }
  static std::vector<TensorRule> rules() {
    return rules_with(
        {{"layers.0.norm", TensorStyle::kRowsBegin}, {"layers.2.norm2", TensorStyle::kRowsEnd}});
  }
};

struct Way {
  std::string mesh;
  int zero = 0;
  std::string schedule = "1f1b";
  bool divides_rows = false;
  ContextWay context_way = ContextWay::kRing;

  Parallelism how() const {
    Parallelism all = parse_parallelism(mesh);
    all.zero = zero;
    all.schedule = schedule;
    all.divides_rows = divides_rows;
    all.context_way = context_way;
    return all;
  }
  int ranks() const {
    int count = 1;
    for (const MeshAxis& axis : parse_parallelism(mesh).axes) count *= axis.size;
    return count;
  }
  std::string str() const {
    return mesh + " zero" + std::to_string(zero) + " " + schedule + (divides_rows ? " rows" : "") +
           " " + to_string(context_way);
  }
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {.mesh = "data=2"},
      {.mesh = "tensor=2"},
      {.mesh = "tensor=4"},
      {.mesh = "tensor=2", .divides_rows = true},
      {.mesh = "pipe=2"},
      {.mesh = "pipe=2", .schedule = "zb-h1"},
      {.mesh = "context=2"},
      {.mesh = "context=2", .context_way = ContextWay::kHeads},
      {.mesh = "data=2", .zero = 1},
      {.mesh = "data=2", .zero = 2},
      {.mesh = "data=2", .zero = 3},
      {.mesh = "data=2,tensor=2", .zero = 1, .divides_rows = true},
      {.mesh = "pipe=2,tensor=2", .schedule = "zb-h1", .divides_rows = true},
      {.mesh = "data=2,pipe=2,context=2", .zero = 2},
      {.mesh = "pipe=2,context=2,tensor=2", .divides_rows = true}};
  return all;
}

template <typename Case>
class ParallelModelOf : public ::testing::Test {};
using Cases = ::testing::Types<DecoderCase, EncoderCase, VisionCase>;

class CaseNames {
 public:
  template <typename Case>
  static std::string GetName(int index) {
    const std::vector<std::string> names{"Decoder", "Encoder", "Vision"};
    return names[static_cast<size_t>(index)];
  }
};
TYPED_TEST_SUITE(ParallelModelOf, Cases, CaseNames);

// Some gradients are only rounding, which Adam would treat like any other.
const auto kDescent = torch::optim::SGDOptions(0.1).momentum(0.9);

// It uses torch's optimizer and clipping.
template <typename Case>
std::pair<std::vector<double>, NamedTensors> by_one_process() {
  auto model = Case::make();
  torch::optim::SGD optimizer(model->parameters(), kDescent);
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(model->forward(Case::inputs(step)), Case::targets(step));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm);
    optimizer.step();
    losses.push_back(loss.template item<double>());
  }
  return {losses, parameters_of(model)};
}

template <typename Case>
ParallelModel divided(Communicator& comm, const Way& way) {
  return ParallelModel(Case::make(), comm, way.how(), {.modules = Case::rules(), .units = "layers"},
                       {.loss = loss_of, .inputs = Case::inputs(0), .targets = Case::targets(0)});
}

TYPED_TEST(ParallelModelOf, PlainModulesTrainsAsOneProcessDoesByEveryWay) {
  const auto [losses, parameters] = by_one_process<TypeParam>();
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.str());
    testing::run_threads(
        way.ranks(), [&, &expected = losses, &values = parameters](Communicator& comm) {
          ParallelModel model = divided<TypeParam>(comm, way);
          model.divided().make_optimizer(kDescent);
          Communicator rows = model.rows();
          const int64_t share = kRows / rows.size(), first = share * rows.rank();
          for (int64_t step = 0; step < kSteps; ++step) {
            const double loss = model.step(TypeParam::inputs(step).narrow(0, first, share),
                                           TypeParam::targets(step).narrow(0, first, share));
            model.divided().update({.max_norm = kMaxNorm});
            const at::Tensor mean = torch::full({1}, loss, at::kDouble);
            rows.all_reduce(mean, ReduceOp::kAvg);
            EXPECT_NEAR(mean.item<double>(), expected[static_cast<size_t>(step)], 1e-11) << step;
          }
          const NamedTensors all = model.divided().gather();
          EXPECT_EQ(all.size(), comm.rank() == 0 ? values.size() : 0u);
          for (size_t i = 0; i < all.size(); ++i)
            EXPECT_TRUE(at::allclose(all[i].second, values[i].second, 0, 1e-10)) << all[i].first;
        });
  }
}

TEST(ParallelModel, EvaluatesTheWholeBatchAndSaysWhoHasWhat) {
  auto whole = DecoderCase::make();
  const double expected = loss_of(whole->forward(ids_of(2)), ids_of(3)).item<double>();
  testing::run_threads(4, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "pipe=2,tensor=2"});
    EXPECT_NEAR(model.evaluate(ids_of(2), ids_of(3)), expected, 1e-12);
    EXPECT_THAT(model.str(), AllOf(HasSubstr("stage 0: units 0"), HasSubstr("stage 1: units"),
                                   HasSubstr("of 28352 parameters")));
  });
}

// Another division loads the checkpoint of one.
TEST(ParallelModel, GoesOnFromACheckpointOfAnotherDivision) {
  const TestDirectory directory;
  const std::filesystem::path path = directory / "saved";
  std::vector<double> expected;
  testing::run_threads(2, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "tensor=2"});
    model.divided().make_optimizer(kDescent);
    model.step(ids_of(0), ids_of(1));
    model.divided().update({});
    write_checkpoint(comm, path, model.divided().share());
    for (int64_t step = 1; step < 3; ++step) {
      const double loss = model.step(ids_of(step), ids_of(step + 1));
      model.divided().update({});
      if (comm.rank() == 0) expected.push_back(loss);
    }
  });
  testing::run_threads(4, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "pipe=2,context=2", .zero = 1});
    model.divided().make_optimizer(kDescent);
    model.divided().load(read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices), "saved");
    for (int64_t step = 1; step < 3; ++step) {
      EXPECT_NEAR(model.step(ids_of(step), ids_of(step + 1)),
                  expected[static_cast<size_t>(step) - 1], 1e-11);
      model.divided().update({});
    }
  });
}

// Returns the error that all ranks get.
std::string refusal(int ranks, const std::string& mesh, const std::vector<TensorRule>& rules,
                    bool divides_rows = false, bool is_tied = false) {
  std::vector<std::string> said(static_cast<size_t>(ranks));
  testing::run_threads(ranks, [&](Communicator& comm) {
    try {
      Parallelism how = parse_parallelism(mesh);
      how.divides_rows = divides_rows;
      ParallelModel(with_values(Gpt(is_tied)), comm, how, {.modules = rules, .units = "layers"},
                    {.loss = loss_of, .inputs = ids_of(0), .targets = ids_of(1)});
    } catch (const InvalidArgument& error) {
      said[static_cast<size_t>(comm.rank())] = error.what();
    }
  });
  for (const std::string& one : said) EXPECT_EQ(one, said[0]);
  return said[0];
}

std::vector<TensorRule> without(std::vector<TensorRule> rules, const std::string& modules) {
  std::erase_if(rules, [&](const TensorRule& rule) { return rule.modules == modules; });
  return rules;
}

// A plan that leaves out a module would train another model; the comparison with the whole one
// finds it first.
TEST(ParallelModel, APlanThatForgetsAModuleIsNamedBeforeItTrains) {
  EXPECT_THAT(refusal(2, "tensor=2", without(DecoderCase::rules(), "layers.*.norm2"), true),
              AllOf(HasSubstr("the gradient of 'layers.1.norm2."), HasSubstr("are of style rows")));
  EXPECT_THAT(refusal(2, "context=2", without(DecoderCase::rules(), "layers.0.positions")),
              HasSubstr("its outputs are"));
  EXPECT_THAT(refusal(2, "tensor=2", without(DecoderCase::rules(), "layers.*.down")),
              HasSubstr("layers.1.up"));
}

TEST(ParallelModel, RefusesWhatItCannotCutOrDivide) {
  const auto rules = DecoderCase::rules();
  EXPECT_THAT(refusal(2, "pipe=2", {}, false, /*is_tied=*/true),
              HasSubstr("'layers.3.head.weight' is 'layers.0.words.weight', and they are in two"));
  EXPECT_THAT(refusal(2, "expert=2", rules), HasSubstr("the axis expert is for a TransformerLm"));
  EXPECT_THAT(refusal(8, "pipe=8", rules), HasSubstr("8"));
  testing::run_threads(2, [&](Communicator& comm) {
    EXPECT_THAT(
        [&] {
          ParallelModel(with_values(Gpt()), comm, parse_parallelism("pipe=2"), {.units = "blocks"},
                        {.loss = loss_of, .inputs = ids_of(0), .targets = ids_of(1)});
        },
        ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("'blocks', which no child is called")));
    EXPECT_THAT(
        [&] {
          ParallelModel(with_values(Gpt()), comm, parse_parallelism("pipe=2"), {},
                        {.loss = loss_of, .inputs = ids_of(0), .targets = ids_of(1)});
        },
        ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("name a child that is")));
    EXPECT_THAT(
        [&] {
          ParallelModel(with_values(Gpt()), comm, parse_parallelism("data=2"), {},
                        {.loss = loss_of, .inputs = ids_of(0), .targets = {}});
        },
        ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("give an example")));
  });
}

// Micro-batches of unequal sizes, whose targets count unequally.
TEST(ParallelModel, TargetsThatDoNotCountAreLeftOutOfTheMean) {
  at::Tensor targets = ids_of(1).clone();
  targets[0].fill_(-100);
  targets[5].narrow(0, 0, 3).fill_(-100);
  auto whole = DecoderCase::make();
  const at::Tensor expected = loss_of(whole->forward(ids_of(0)), targets);
  expected.backward();
  const auto counted = [](const at::Tensor& some) { return some.ne(-100).sum().item<double>(); };
  testing::run_threads(2, [&](Communicator& comm) {
    Parallelism how = parse_parallelism("data=1,context=2");
    how.micro_batches = 3;
    ParallelModel model(
        DecoderCase::make(), comm, how, {.modules = DecoderCase::rules()},
        {.loss = loss_of, .count = counted, .inputs = ids_of(0), .targets = targets});
    EXPECT_NEAR(model.step(ids_of(0), targets), expected.item<double>(), 1e-12);
    Communicator& context = model.mesh()["context"];
    for (const DividedParameter& part : model.divided().own()) {
      const at::Tensor mean = part.tensor.grad().clone();
      context.all_reduce(mean, ReduceOp::kAvg);
      EXPECT_TRUE(at::allclose(mean, whole->named_parameters()[part.name].grad(), 0, 1e-12))
          << part.name;
    }
    EXPECT_EQ(model.step(ids_of(0), targets, 0), 0);
    EXPECT_THROW(model.step(ids_of(0), targets, NAN), InvalidArgument);
    // The same without a count, and with a sum for a mean.
    const auto refused = [&](const ParallelModelOptions& options) {
      return message_of<InvalidArgument>([&] {
        ParallelModel(DecoderCase::make(), comm, parse_parallelism("data=2"), {}, options);
      });
    };
    EXPECT_THAT(refused({.loss = loss_of, .count = {}, .inputs = ids_of(0), .targets = targets}),
                HasSubstr("and a count of the targets that are in it"));
    EXPECT_THAT(refused({.loss =
                             [](const at::Tensor& outputs, const at::Tensor& some) {
                               return loss_of(outputs, some) * 8 / some.size(0);
                             },
                         .count = {},
                         .inputs = ids_of(0),
                         .targets = ids_of(1)}),
                HasSubstr("give a loss that is a mean"));
  });
}

// If branches begin as zeros, norms before them have no gradients yet.
TEST(ParallelModel, AForgottenNormIsNamedInAModelThatBeginsAsTheIdentity) {
  testing::run_threads(2, [&](Communicator& comm) {
    auto model = DecoderCase::make();
    const at::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters())
      if (item.key().find("mix.") != std::string::npos ||
          item.key().find("down.") != std::string::npos)
        item.value().zero_();
    Parallelism how = parse_parallelism("tensor=2");
    how.divides_rows = true;
    const auto build = [&](const std::vector<TensorRule>& rules) {
      const at::AutoGradMode gradients(true);
      return ParallelModel(model, comm, how, {.modules = rules},
                           {.loss = loss_of, .inputs = ids_of(0), .targets = ids_of(1)});
    };
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { build(without(DecoderCase::rules(), "layers.*.norm1")); }),
                HasSubstr("the gradient of 'layers.1.norm1."));
  });
}

TEST(ParallelModel, ValuesAreTheModelsOwnAfterTheCheck) {
  auto whole = DecoderCase::make();
  testing::run_threads(2, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "tensor=2"});
    for (const DividedParameter& part : model.divided().own()) {
      const at::Tensor of = whole->named_parameters()[part.name];
      EXPECT_TRUE(at::equal(part.tensor, part.slice.whole()
                                             ? of
                                             : of.narrow(part.slice.dim, part.slice.begin,
                                                         part.slice.end - part.slice.begin)))
          << part.name;
    }
  });
}

// Frozen parameters are saved and gathered; modules in evaluation mode stay so.
TEST(ParallelModel, FrozenPartsStayAsTheyAre) {
  const TestDirectory directory;
  const std::filesystem::path path = directory / "saved";
  const at::Tensor words = DecoderCase::make()->named_parameters()["layers.0.words.weight"];
  testing::run_threads(2, [&](Communicator& comm) {
    auto frozen = DecoderCase::make();
    frozen->layers->at<plain::EmbedImpl>(0).words->weight.set_requires_grad(false);
    frozen->layers->at<plain::HeadImpl>(3).norm->eval();
    ParallelModel model(frozen, comm, parse_parallelism("pipe=2"), {.units = "layers"},
                        {.loss = loss_of, .inputs = ids_of(0), .targets = ids_of(1)});
    model.divided().make_optimizer(kDescent);
    model.step(ids_of(0), ids_of(1));
    model.divided().update({.max_norm = 1});
    EXPECT_FALSE(frozen->layers->at<plain::HeadImpl>(3).norm->is_training());
    EXPECT_TRUE(frozen->layers->at<plain::BlockImpl>(1).is_training());
    EXPECT_GT(model.divided().memory().parameters, 0);
    write_checkpoint(comm, path, model.divided().share());
    for (const auto& [name, tensor] : model.divided().gather())
      EXPECT_TRUE(name != "layers.0.words.weight" || at::equal(tensor, words));
    model.divided().load(read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices), "saved");
  });
}

// Children of a Sequential may have names, in any order.
TEST(ParallelModel, UnitsHaveNames) {
  const auto make = [] {
    torch::nn::Sequential units;
    units->push_back("second", torch::nn::Linear(8, 16));
    units->push_back("1", torch::nn::Linear(16, 16));
    units->push_back("0", torch::nn::Linear(16, plain::kWords));
    return with_values(units);
  };
  const at::Tensor inputs = torch::arange(kRows * 8, at::kDouble).sin().view({kRows, 8});
  auto whole = make();
  const double expected = loss_of(whole->forward(inputs), classes_of(0)).template item<double>();
  testing::run_threads(2, [&](Communicator& comm) {
    auto units = make();
    ParallelModel model(units.ptr(),
                        [units](const at::Tensor& x) mutable { return units->forward(x); }, comm,
                        parse_parallelism("pipe=2"), {},
                        {.loss = loss_of, .inputs = inputs, .targets = classes_of(0)});
    EXPECT_NEAR(model.step(inputs, classes_of(0)), expected, 1e-12);
    EXPECT_EQ(model.divided().own().size(), comm.rank() == 0 ? 4u : 2u) << model.str();
  });
}

TEST(ParallelModel, ItsOwnAttentionAndAnotherAreRefusedInOneLine) {
  testing::run_threads(2, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "context=2"});
    const ContextScope scope(model.mesh()["context"]);
    EXPECT_THAT([&] { model.step(ids_of(0), ids_of(1)); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("is replaced already")));
  });
}

TEST(ParallelModel, RanksOfARowThatAreGivenOtherBatchesAreTold) {
  testing::run_threads(2, [&](Communicator& comm) {
    ParallelModel model = divided<DecoderCase>(comm, {.mesh = "tensor=2"});
    EXPECT_THAT([&] { model.step(ids_of(comm.rank()), ids_of(1)); },
                ::testing::ThrowsMessage<Mismatch>(HasSubstr("row: inputs")));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::parallel_model_test
