// The C interface on several ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "lockstep/c/checks_test.h"
#include "lockstep/c/lockstep.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::c_mp_test {
namespace {

using testing::expect_lone_ranks;

// Each rank is a process that runs the check.
void on_ranks(int size, const std::function<int()>& check, const std::map<int, int>& ends = {}) {
  expect_lone_ranks(
      size,
      [&check] {
        if (check() != 0) throw std::runtime_error("the check failed, see above");
      },
      ends);
}

// A folder that the ranks share: the parent's, which they get by the environment.
void with_folder(int size, const std::function<int(const std::string& folder)>& check) {
  const TestDirectory folder;
  testing::LoneOptions options;
  options.variables["LOCKSTEP_C_TEST_FOLDER"] = folder.path();
  expect_lone_ranks(
      size,
      [&check] {
        const char* given = std::getenv("LOCKSTEP_C_TEST_FOLDER");
        if (given == nullptr) throw std::runtime_error("no folder is given");
        if (check(given) != 0) throw std::runtime_error("the check failed, see above");
      },
      {}, options);
}

TEST(C, Collectives) {
  on_ranks(2, check_collectives);
}
TEST(C, CollectivesOfThree) {
  on_ranks(3, check_collectives);
}
TEST(C, Strides) {
  on_ranks(2, check_strides);
}
TEST(C, Messages) {
  on_ranks(3, check_messages);
}
TEST(C, Groups) {
  on_ranks(3, check_groups);
}
TEST(C, Store) {
  on_ranks(2, check_store);
}
TEST(C, Arrays) {
  on_ranks(2, check_arrays);
}
TEST(C, AMismatchNamesTheLinesOfC) {
  on_ranks(2, check_mismatch);
}
TEST(C, AbortReachesTheOthers) {
  on_ranks(2, check_abort);
}
TEST(C, ANullHandleOfOneRankIsNamedByTheOthers) {
  on_ranks(2, check_null_handles);
}
TEST(C, AKilledRankIsPeerLost) {
  on_ranks(2, check_lost_peer, {{1, SIGKILL}});
}

TEST(CModel, RanksTrainAsOneProcess) {
  on_ranks(2, check_training);
}
TEST(CModel, ThreeRanksTrainAsOneProcess) {
  on_ranks(3, check_training);
}
TEST(CModel, TheCallersLoss) {
  on_ranks(2, check_loss_function);
}
TEST(CModel, AFailedForwardIsEveryRanks) {
  on_ranks(2, check_failed_forward);
}
TEST(CModel, UnlikeOptionsAreSeen) {
  on_ranks(2, check_unlike_options);
}
TEST(CModel, UnlikeOptionsOfThreeAreSeen) {
  on_ranks(3, check_unlike_options);
}
TEST(CModel, Checkpoints) {
  with_folder(2, [](const std::string& folder) { return check_checkpoint(folder.c_str()); });
}

TEST(CModel, NullOfOneRankIsEveryRanks) {
  with_folder(2, [](const std::string& folder) { return check_null_in_models(folder.c_str()); });
}
TEST(CModel, UnlikeOptimizersInCheckpointsAreSeen) {
  with_folder(3,
              [](const std::string& folder) { return check_unlike_checkpoints(folder.c_str()); });
}

TEST(CModel, ALossFromAFile) {
  with_folder(2, [](const std::string& folder) {
    const std::string file = folder + "/loss" + std::to_string(::getpid()) + ".pt";
    torch::jit::Module loss("Loss");
    loss.define("def forward(self, y, t):\n  return torch.mean((y - t) * (y - t))\n");
    loss.save(file);
    return check_loss_script(file.c_str());
  });
}

// A model with running statistics: after each step all ranks have those of a rank with rows.
TEST(CModel, BuffersAreEqualOnAllRanks) {
  with_folder(2, [](const std::string& folder) {
    const std::string file = folder + "/mean" + std::to_string(::getpid()) + ".pt";
    torch::jit::Module module("Mean");
    module.register_parameter("w", torch::ones({1}, torch::kDouble).set_requires_grad(true), false);
    module.register_buffer("mean", torch::zeros({1}, torch::kDouble));
    module.register_attribute("training", c10::BoolType::get(), true);
    module.define(R"(
def forward(self, x):
  if self.training:
    self.mean.mul_(0.5).add_(0.5 * x.detach().mean())
  return (x - self.mean) * self.w
)");
    module.save(file);
    lockstep_comm* comm = nullptr;
    lockstep_model* model = nullptr;
    int32_t rank = 0;
    CHECK_OK(lockstep_init(nullptr, &comm));
    CHECK_OK(lockstep_comm_rank(comm, &rank));
    CHECK_OK(lockstep_model_load(file.c_str(), nullptr, &model));
    lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
    options.loss = "mse";
    CHECK_OK(lockstep_model_start_training(model, comm, &options));
    double mean = 0;
    for (int step = 0; step < 4; ++step) {
      // Rank 1 alone has rows in the odd steps.
      double x[2] = {1.0 + rank + step, 3.0 + rank + step}, t[2] = {0, 0}, y[1] = {0},
             zero[1] = {0};
      const int64_t shape[2] = {rank == 0 && step % 2 == 1 ? 0 : 2, 1}, one[2] = {1, 1};
      lockstep_array in{x, shape, nullptr, 2, LOCKSTEP_FLOAT64, 0, 0};
      lockstep_array wanted{t, shape, nullptr, 2, LOCKSTEP_FLOAT64, 0, 0};
      // A step that fails on rank 1 after rank 0's forward leaves the statistics alone.
      lockstep_array unknown = wanted;
      unknown.dtype = 99;
      CHECK_THAT(
          lockstep_model_train_step(model, &in, 1, rank == 1 ? &unknown : &wanted, 1, nullptr) ==
          (rank == 1 ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH));
      CHECK_OK(lockstep_model_train_step(model, &in, 1, &wanted, 1, nullptr));
      const double source = step % 2 == 1 ? 1 : 0;
      mean = 0.5 * mean + 0.5 * (2 + source + step);
      lockstep_array point{zero, one, nullptr, 2, LOCKSTEP_FLOAT64, 0, 0};
      lockstep_array result{y, one, nullptr, 2, LOCKSTEP_FLOAT64, 0, 0};
      CHECK_OK(lockstep_model_forward(model, &point, 1, &result, 1));
      lockstep_array w{};
      CHECK_OK(lockstep_model_parameter(model, 0, nullptr, &w));
      CHECK_THAT(std::abs(y[0] + mean * *static_cast<double*>(w.data)) < 1e-12);
    }
    CHECK_OK(lockstep_model_free(model));
    CHECK_OK(lockstep_comm_free(comm));
    return 0;
  });
}

}  // namespace
}  // namespace lockstep::inline v0::c_mp_test
