// Products among processes, each with a generator of its own, and the errors of the others when one
// is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::products_mp_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;
constexpr int64_t kSequences = 8, kSteps = 4;
constexpr double kRate = 1e-3, kMaxNorm = 0.5;
constexpr int kRanks = 4, kKilled = 1;

LmConfig small() {
  LmConfig config;
  config.vocab_size = 51;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  return config;
}

Parallelism by(const std::string& mesh, int zero) {
  Parallelism how = parse_parallelism(mesh);
  how.zero = zero;
  return how;
}

LmRowBatch batch_of(int64_t step, int64_t first, int64_t count) {
  const at::Tensor ids = (torch::arange(kSequences * 9, at::kLong) * 7 + step * 11)
                             .pow(2)
                             .remainder(51)
                             .view({kSequences, 9});
  return {ids.narrow(0, first, count), ids.roll(-1, 1).narrow(0, first, count)};
}

struct Course {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;  // after the last step
};

// torch's AdamW; norms, the model's only parameters of one dimension, do not decay.
Course by_one_process() {
  torch::manual_seed(kSeed);
  TransformerLm whole(small());
  std::vector<at::Tensor> decayed, others;
  for (const auto& [name, tensor] : parameters_of(whole))
    (tensor.dim() > 1 ? decayed : others).push_back(tensor);
  const auto options = torch::optim::AdamWOptions(kRate);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<torch::optim::AdamWOptions>(options));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(
                                  torch::optim::AdamWOptions(options).weight_decay(0)));
  torch::optim::AdamW optimizer(groups, options);
  Course course;
  for (int64_t step = 0; step < kSteps; ++step) {
    const LmRowBatch batch = batch_of(step, 0, kSequences);
    optimizer.zero_grad();
    const at::Tensor loss = whole->loss(batch.ids, batch.targets);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(whole->parameters(), kMaxNorm);
    optimizer.step();
    course.losses.push_back(loss.item<double>());
  }
  for (const auto& [name, tensor] : parameters_of(whole)) course.parameters[name] = tensor.detach();
  return course;
}

at::Tensor slice_of(const at::Tensor& whole, const PartSlice& slice) {
  return slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

void expect_one_process(Communicator& comm, const Parallelism& how) {
  const Course expected = by_one_process();
  torch::manual_seed(kSeed);
  const TransformerLm drawn(small());
  const auto values = drawn->named_parameters();
  torch::manual_seed(kSeed);
  ParallelLm model(small(), comm, how);
  for (const DividedParameter& part : model.parameters())
    EXPECT_TRUE(at::equal(part.tensor, slice_of(values[part.name], part.slice))) << part.name;
  model.make_optimizer(torch::optim::AdamWOptions(kRate));
  Communicator rows = model.rows();
  const int64_t share = kSequences / rows.size();
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor loss = torch::full({1}, model.step(batch_of(step, rows.rank() * share, share)),
                                        torch::dtype(at::kDouble));
    model.update({.max_norm = kMaxNorm});
    rows.all_reduce(loss, ReduceOp::kAvg);
    EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<size_t>(step)], 1e-5) << step;
  }
  const NamedTensors gathered = model.gather();
  EXPECT_EQ(gathered.size(), comm.rank() == 0 ? expected.parameters.size() : 0u);
  for (const auto& [name, tensor] : gathered) {
    const at::Tensor& truth = expected.parameters.at(name);
    EXPECT_LT((tensor - truth).norm().item<double>(), 2e-4 * truth.norm().item<double>()) << name;
  }
}

struct Division {
  const char* name;
  const char* mesh;
  int zero;
};

class ParallelLmProcesses : public ::testing::TestWithParam<Division> {};

TEST_P(ParallelLmProcesses, TrainAsOneProcessDoesFromOneSeed) {
  for (const char* backend : {"shm", "tcp"})
    testing::expect_ranks(
        kRanks,
        [](Communicator& comm) { expect_one_process(comm, by(GetParam().mesh, GetParam().zero)); },
        {.backend = backend}, backend);
}

// All ranks take a step; before the second one a rank kills itself.
void train_until_killed(Communicator& comm, const Division& division) {
  torch::manual_seed(kSeed);
  ParallelLm model(small(), comm, by(division.mesh, division.zero));
  model.make_optimizer(torch::optim::AdamWOptions(kRate));
  for (int64_t step = 0; step < 2; ++step) {
    if (step == 1 && comm.rank() == kKilled) ::kill(::getpid(), SIGKILL);
    const int64_t share = kSequences / model.rows().size();
    model.step(batch_of(step, model.rows().rank() * share, share));
    model.update({.max_norm = kMaxNorm});
  }
}

// Groups have numbers of their own. A rank that shares a group with the killed rank names its
// process, and its number and place in the job. Rank 2 shares none; it names a rank that got the
// error.
TEST_P(ParallelLmProcesses, WhoIsNextToAKilledRankNamesItsProcess) {
  testing::expect_lone_ranks(
      kRanks,
      [] {
        Communicator comm = init({.backend = "shm", .timeout = std::chrono::seconds(5)});
        const auto pids = all_gather_object(comm, nlohmann::json(::getpid()));
        std::optional<std::string> told;
        try {
          train_until_killed(comm, GetParam());
        } catch (const PeerLost& error) {
          told = error.what();
        }
        ASSERT_TRUE(told) << "nobody is lost";
        const std::string killed = "(pid " + pids[kKilled].dump() + ")";
        EXPECT_THAT(*told,
                    ContainsRegex("is rank [013] of the job \\((data|pipe) [01], tensor [01]\\)"));
        if (comm.rank() == 2)
          EXPECT_THAT(*told, ContainsRegex("left the group|process is dead"));
        else
          EXPECT_THAT(*told,
                      AllOf(HasSubstr(killed), HasSubstr("its process is dead"),
                            ContainsRegex("rank 1 of the job \\((data|pipe) 0, tensor 1\\)")));
        EXPECT_EQ(told->find('\n'), std::string::npos) << *told;
      },
      {{kKilled, SIGKILL}});
}

// The launcher of the ranks names the killed one among all.
TEST_P(ParallelLmProcesses, TheLauncherNamesARankThatIsKilled) {
  const testing::RankResult result = testing::run_ranks(
      kRanks, [](Communicator& comm) { train_until_killed(comm, GetParam()); },
      testing::gtest_point());
  ASSERT_TRUE(result.launch.failure);
  EXPECT_EQ(result.launch.failure->rank, kKilled) << result.report;
  EXPECT_EQ(result.launch.failure->signal, SIGKILL);
  EXPECT_THAT(result.report, HasSubstr("rank 1 of 4"));
}

INSTANTIATE_TEST_SUITE_P(Divisions, ParallelLmProcesses,
                         ::testing::Values(Division{"StagesAndParts", "pipe=2,tensor=2", 0},
                                           Division{"RowsAndPartsZero1", "data=2,tensor=2", 1}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::inline v0::products_mp_test
