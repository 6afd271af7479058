// Faults that nobody throws: a bit that flips, a rank that is slow. Ranks as processes.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/recover/recovery.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/straggler.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0::silent_faults_mp_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr const char* kFolder = "SILENT_FAULTS_TEST_FOLDER";

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 4));
    last = register_module("last", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

// Steps of a real training; `before(step)` is called in each, from 1.
void train(Communicator& comm, int64_t steps, TrainLoopOptions options,
           const std::function<void(Net&, int64_t)>& before,
           const std::vector<std::shared_ptr<TrainCallback>>& callbacks, int64_t check_every = 0) {
  torch::manual_seed(3);
  Net net;
  const std::shared_ptr<Strategy> strategy = make_strategy("ddp");
  StrategyModel model(net, strategy, comm);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  int64_t step = 0;
  TrainTask task{.steps_per_epoch = steps,
                 .begin_epoch = [](int64_t, int64_t) {},
                 .step = [&]() -> StepResult {
                   before(net, ++step);
                   optimizer.zero_grad();
                   const at::Tensor loss = model(at::ones({4, 8})).square().mean();
                   strategy->gradients().compute([&] { return loss; });
                   strategy->state().step(optimizer);
                   return {.loss = loss.item<double>(), .samples = 4};
                 }};
  options.epochs = 1;
  TrainLoop loop(comm, std::move(task), options);
  if (const auto check = replica_check(comm, *net, *strategy, check_every)) loop.add(check);
  for (const auto& callback : callbacks) loop.add(callback);
  loop.run();
}

TEST(SilentFaults, ABitOfOneRankOfThreeIsFound) {
  testing::expect_ranks(3, [](Communicator& comm) {
    std::string error;
    try {
      train(
          comm, 20, {},
          [&](Net& net, int64_t step) {
            if (comm.rank() == 2 && step == 11)
              static_cast<char*>(net->first->bias.mutable_data_ptr())[2] ^= 1;
          },
          {}, /*check_every=*/5);
    } catch (const Mismatch& mismatch) {
      error = mismatch.what();
    }
    EXPECT_THAT(error, HasSubstr("replicas differ at step 15: 'first."));
    EXPECT_THAT(error, HasSubstr("' of rank 2 (on "));
    EXPECT_THAT(error, HasSubstr(") is not that of the other 2 ranks"));
  });
}

// Rank 2 of three sleeps much longer than the others. How long anything takes besides, a loaded
// machine decides: what the numbers are exactly, straggler_test says.
void straggle(Communicator& comm) {
  std::vector<std::shared_ptr<TrainCallback>> callbacks{std::make_shared<StragglerCallback>(comm)};
  if (comm.rank() == 0)
    callbacks.push_back(std::make_shared<MetricsCallback>(
        JsonlWriter(std::filesystem::path(std::getenv(kFolder)) / "metrics.jsonl",
                    JsonlWriter::Mode::kReplace)));
  train(
      comm, 60, {.log_every = 5},
      [&](Net&, int64_t) { std::this_thread::sleep_for(milliseconds(comm.rank() == 2 ? 60 : 5)); },
      callbacks);
}

TEST(SilentFaults, TheRankThatSleepsIsNamedInTheLogs) {
  const TestDirectory dir;
  ::setenv(kFolder, dir.path().c_str(), 0);  // of the parent
  testing::expect_ranks(3, straggle);
  int named = 0;
  std::ifstream file(dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    // Two runs of the same numbers are the same, whoever was late in them: what a log says besides
    // is not of them.
    for (const auto& [member, value] : json.items()) {
      const bool plain =
          member == "type" || member == "step" || member == "epoch" || member == "loss";
      EXPECT_EQ(counts_in_diff(member), plain) << member;
    }
    if (json.value("straggler_rank", -1) != 2) continue;
    ++named;
    EXPECT_GT(json.at("straggler_late_s"), 0) << line;
    EXPECT_GE(json.at("straggler_since_step"), 1) << line;
    EXPECT_FALSE(json.at("straggler_host").get<std::string>().empty()) << line;
  }
  EXPECT_GE(named, 1);
  ::unsetenv(kFolder);
}

int life() {
  return static_cast<int>(env_int(process_env(), "LOCKSTEP_RESTART_COUNT").value_or(0));
}

// The first process of rank 1 is slow. A loaded machine may make another one so, which is evicted
// as well.
void train_with_eviction(Communicator& first) {
  constexpr int64_t kSteps = 60;
  torch::manual_seed(3);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  const bool slow = first.rank() == 1 && life() == 0;
  Recovery run(first, {.model = net.ptr(), .optimizer = &optimizer});
  while (run.step() < kSteps) try {
      DistributedDataParallel ddp(net, run.comm());
      StragglerMonitor monitor(run.comm(), {.windows = 1, .evict = 3, .evict_windows = 2});
      while (run.step() < kSteps) {
        const auto start = std::chrono::steady_clock::now();
        const double waited = run.comm().waited();
        std::this_thread::sleep_for(milliseconds(slow ? 300 : 15));
        optimizer.zero_grad();
        ddp(at::ones({4, 8})).square().mean().backward();
        run.update([&] { optimizer.step(); });
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        monitor.add_step(passed.count() - (run.comm().waited() - waited));
        // Not after the last step: who has ended needs no newcomer.
        if (run.step() % 5 == 0 && run.step() < kSteps) monitor.compare(run.step());
      }
    } catch (...) {
      run.recover();
    }
  run.finish();
  if (first.rank() == 1) {
    EXPECT_GE(life(), 1);
  }
  EXPECT_EQ(run.step(), kSteps);
  check_equal_values(run.comm(), parameters_of(net));
}

TEST(SilentFaults, ARankThatStaysSlowIsEvictedAndReplaced) {
  testing::expect_ranks(3, train_with_eviction, {.replacements = 5});
}

}  // namespace
}  // namespace lockstep::inline v0::silent_faults_mp_test
