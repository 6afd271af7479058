// Ranks that are killed at arbitrary moments, and training that ends with the same bits.
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/recover/recovery.h"
#include "lockstep/recover/rollback_recovery.h"
#include "lockstep/recover/test_deaths.h"
#include "lockstep/recover/test_net.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::recovery_mp_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Net = recover_test::TestNet;
namespace fs = std::filesystem;

constexpr int kRanks = 3;
constexpr int64_t kSamples = 240, kBatch = 4, kWidth = 12;

// The job's folder, and what it shows to the test.
class Place {
 public:
  explicit Place(fs::path folder) : folder_(std::move(folder)) {}
  static Place of_this_rank() { return Place(std::getenv("RECOVERY_TEST_FOLDER")); }

  void say(const std::string& name, const std::string& text) const {
    const fs::path draft = folder_ / (name + "." + std::to_string(::getpid()));
    std::ofstream(draft) << text;
    fs::rename(draft, folder_ / name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t step() const {
    const std::string text = read("step");
    return text.empty() ? -1 : std::stoll(text);
  }
  fs::path result(int rank) const { return folder_ / ("rank" + std::to_string(rank)); }

 private:
  fs::path folder_;
};

int life() {
  return std::stoi(process_env()("LOCKSTEP_RESTART_COUNT").value_or("0"));
}

// At a named moment of a step, a test may kill this process.
using Moment = std::function<void(const char* what, int64_t step)>;

void train(Communicator& first, int64_t steps, const Moment& moment) {
  const Place place = Place::of_this_rank();
  const int pid = ::getpid();
  Net net(kWidth);
  torch::manual_seed(100 + static_cast<uint64_t>(first.rank()));
  optim::FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  // How often this rank has seen each sample: state that only this rank has.
  std::vector<int> seen(kSamples, 0);
  const auto save = [&seen] {
    std::ostringstream text;
    for (const int count : seen) text << count << ' ';
    return text.str();
  };
  const auto load = [&seen](const std::string& text) {
    std::istringstream words(text);
    for (int& count : seen) words >> count;
  };
  Recovery run(first, {.model = net.ptr(), .optimizer = &optimizer, .save = save, .load = load},
               {.patience = seconds(60)});
  moment("constructed", run.step());
  while (run.step() < steps) try {
      // Running means belong to each rank, before a death and after it.
      DistributedDataParallel ddp(net, run.comm(), {.buffers = Buffers::kOwn, .init_sync = false});
      while (run.step() < steps) {
        const int64_t step = run.step();
        if (run.comm().rank() == 0) place.say("step", std::to_string(step));
        moment("loading", step);
        const int64_t begin = (step * kRanks + run.comm().rank()) * kBatch % kSamples;
        const at::Tensor ids = at::arange(begin, begin + kBatch, at::kLong);
        const at::Tensor x = torch::sin(ids.unsqueeze(1) * 0.7 + at::arange(kWidth) * 1.3);
        optimizer.zero_grad();
        const at::Tensor y = ddp(x);
        for (int64_t i = begin; i < begin + kBatch; ++i) ++seen[static_cast<size_t>(i)];
        moment("forward", step);
        if (y.requires_grad())
          y.register_hook([&moment, step](const at::Tensor& gradient) {
            moment("backward", step);
            return gradient;
          });
        const at::Tensor loss = torch::nn::functional::cross_entropy(y, ids % 3);
        loss.backward();
        moment("reduced", step);
        run.update([&optimizer, &moment, step] {
          moment("agreed", step);
          optimizer.step();
          moment("updated", step);
        });
        std::this_thread::sleep_for(milliseconds(2));
      }
    } catch (...) {
      moment("failed", run.step());
      run.recover();
      moment("recovered", run.step());
    }
  run.finish();
  EXPECT_EQ(::getpid(), pid);
  const at::Tensor seen_by_all = at::tensor(seen, at::kInt);
  run.comm().all_reduce(seen_by_all);
  NamedTensors all = to_named_tensors(net->named_buffers());
  for (const auto& entry : parameters_of(net)) all.push_back(entry);
  all.emplace_back("seen_by_all", seen_by_all);
  all.emplace_back("recoveries", at::full({1}, run.recoveries(), at::kLong));
  all.emplace_back("life", at::full({1}, life(), at::kLong));
  write_safetensors(place.result(run.comm().rank()), all);
}

class Job {
 public:
  explicit Job(const std::string& name)
      : folder_(fs::temp_directory_path() /
                ("lockstep-recovery-" + std::to_string(::getpid()) + "-" + name)) {
    // A rank's process has its folder already.
    if (!std::getenv("RECOVERY_TEST_FOLDER") || !in_rank()) {
      fs::create_directories(folder_);
      ::setenv("RECOVERY_TEST_FOLDER", folder_.c_str(), 1);
    }
  }
  ~Job() {
    std::error_code ignored;
    if (!in_rank()) fs::remove_all(folder_, ignored);
  }
  static bool in_rank() { return process_env()("RANK").has_value(); }
  Place place() const { return Place(folder_); }

  // The step's results by rank and name.
  std::vector<Safetensors> results() const {
    std::vector<Safetensors> all;
    for (int r = 0; r < kRanks; ++r) all.push_back(read_safetensors(place().result(r)));
    return all;
  }

 private:
  fs::path folder_;
};

int64_t recoveries_of(const std::vector<Safetensors>& results) {
  int64_t most = 0;
  for (const Safetensors& rank : results)
    most = std::max(most, rank.find("recoveries")->item<int64_t>());
  return most;
}

void expect_same(const std::vector<Safetensors>& found, const std::vector<Safetensors>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t r = 0; r < found.size(); ++r) {
    for (const auto& [name, tensor] : expected[r].tensors) {
      if (name == "recoveries" || name == "life") continue;
      const at::Tensor* other = found[r].find(name);
      ASSERT_NE(other, nullptr);
      EXPECT_TRUE(at::equal(tensor, *other)) << name << " of rank " << r;
    }
  }
}

std::vector<Safetensors> run_job(const std::string& name, int64_t steps, const Moment& moment,
                                 int replacements = 0) {
  const Job job(name);
  testing::expect_ranks(
      kRanks, [&](Communicator& comm) { train(comm, steps, moment); },
      {.deadline = seconds(testing::long_tests() ? 560 : 100), .replacements = replacements}, name);
  // A rank's process also comes here, after the jobs that it does not belong to.
  if (Job::in_rank() || ::testing::Test::HasFailure()) return {};
  return job.results();
}

void nothing(const char*, int64_t) {}

// One rank dies at each moment of a step in turn, and another one while the others recover.
TEST(Recovery, ADeathAtAnyMomentOfAStepCostsNoBit) {
  constexpr int64_t kSteps = 24;
  const auto expected = run_job("undisturbed", kSteps, nothing);
  if (!Job::in_rank()) {
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(recoveries_of(expected), 0);
    for (int64_t i = 0; i < kSamples; ++i) {
      // 24 steps of 3 x 4 samples go through 240 samples 1.2 times.
      EXPECT_EQ(expected[0].find("seen_by_all")->const_data_ptr<int>()[i], i < 48 ? 2 : 1);
    }
  }
  const auto found = run_job(
      "disturbed", kSteps,
      [](const char* what, int64_t step) {
        const int rank = std::stoi(process_env()("RANK").value_or("0"));
        const std::string now = what;
        const auto dies = [&](const char* at, int64_t in, int who, int its_life) {
          // A rank that sees another's death during a step's update may or may not have made the
          // update.
          const bool here = step == in || (now == "failed" && step == in - 1);
          if (now == at && here && rank == who && life() == its_life) ::kill(::getpid(), SIGKILL);
        };
        dies("loading", 0, 1, 0);
        dies("forward", 3, 0, 0);
        dies("backward", 6, 2, 0);
        dies("reduced", 9, 1, 1);
        dies("agreed", 12, 0, 1);
        dies("updated", 15, 2, 1);
        dies("failed", 16, 1, 2);       // while the others recover from that
        dies("constructed", 16, 2, 2);  // as soon as it has its state
        dies("recovered", 16, 0, 2);
      },
      12);
  if (Job::in_rank()) return;
  ASSERT_FALSE(found.empty());
  for (const Safetensors& rank : found)
    EXPECT_EQ(rank.find("life")->item<int64_t>(), 3) << "each rank was to die three times";
  expect_same(found, expected);
}

// Ranks that share the samples of each step, however many they are, and add up their numbers.
void add_up(Communicator& first, int64_t steps, const recover_test::Moments& moments) {
  constexpr int64_t kOfAStep = 12;
  torch::nn::Linear net(1, 1);
  net->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    net->weight.zero_();
  }
  Recovery run(first, {.model = net.ptr()}, {.patience = seconds(60)});
  while (run.step() < steps) try {
      while (run.step() < steps) {
        const int64_t step = run.step();
        moments.at("computing", step);
        const at::Tensor sum = at::zeros({1, 1}, at::kDouble);
        for (int64_t i = run.comm().rank(); i < kOfAStep; i += run.comm().size())
          sum.add_(static_cast<double>(step * kOfAStep + i));
        run.comm().all_reduce(sum);
        moments.at("reduced", step);
        run.update([&net, &moments, sum, step] {
          const at::NoGradGuard no_grad;
          net->weight.add_(sum);
          moments.at("updated", step);
        });
      }
    } catch (...) {
      moments.at("failed", run.step());
      run.recover();
    }
  run.finish();
  const auto samples = static_cast<double>(steps * kOfAStep);
  EXPECT_EQ(net->weight.item<double>(), samples * (samples - 1) / 2);
  EXPECT_EQ(run.comm().size(), 2);
}

// Under --on-failure shrink the same loop goes on without ranks that die.
TEST(Recovery, TheOthersGoOnWithoutRanksThatDie) {
  for (const char* what : {"computing", "reduced", "updated", "failed"}) {
    const recover_test::Moments moments(
        {{"computing", 3, 0, 0}, {what, what == std::string("failed") ? 3 : 7, 2, 0}});
    testing::expect_ranks(
        4, [&](Communicator& comm) { add_up(comm, 12, moments); },
        {.deadline = seconds(60), .shrinks = true}, what);
  }
}

// A rank that is restarted with another program learns that in one line, and the job ends.
TEST(Recovery, AnotherModelIsRefused) {
  const Job job("another");
  const testing::RankResult result = testing::run_ranks(
      2,
      [](Communicator& comm) {
        torch::nn::Linear net(life() == 0 ? 3 : 4, 2);
        optim::FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
        Recovery run(comm, {.model = net.ptr(), .optimizer = &optimizer},
                     {.patience = seconds(10)});
        while (true) try {
            DistributedDataParallel ddp(net, run.comm(), {.init_sync = false});
            while (true) {
              ddp(torch::ones({1, 3})).sum().backward();
              run.update([] {});
              if (comm.rank() == 1 && run.step() == 2) ::kill(::getpid(), SIGKILL);
            }
          } catch (...) {
            run.recover();
          }
      },
      testing::gtest_point({.deadline = seconds(60), .replacements = 1}, "another"));
  if (Job::in_rank()) return;
  EXPECT_NE(result.launch.exit_code, 0);
  EXPECT_THAT(result.report,
              ::testing::HasSubstr(
                  "the state that came from another rank: does not fit the model: different: "
                  "weight is [2, 3]"));
}

TEST(Recovery, TheErrorIsThrownFurtherWhereNobodyIsStartedAnew) {
  testing::expect_ranks(2, [](Communicator& comm) {
    Net net(kWidth);
    optim::FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    Recovery run(comm, {.model = net.ptr(), .optimizer = &optimizer});
    try {
      if (comm.rank() == 0) comm.abort("rank 0 has had enough");
      while (true) run.update([] {});
    } catch (...) {
      EXPECT_THROW(run.recover(), Error);
      try {
        run.recover();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0 has had enough"));
      }
    }
  });
}

// Nobody waits for it, and a new process would wait for the others, which end.
TEST(Recovery, ADeathBehindTheLastStepDoesNotFailTheJob) {
  const auto job = [](const std::string& point, int code) {
    return testing::run_ranks(
        3,
        [code](Communicator& comm) {
          Net net(kWidth);
          Recovery run(comm, {.model = net.ptr()});
          run.finish();
          if (comm.rank() != 1) return std::this_thread::sleep_for(milliseconds(500));
          if (code == 0) ::kill(::getpid(), SIGKILL);
          if (code == SIGABRT) std::abort();
          ::_exit(code);
        },
        testing::gtest_point({.deadline = seconds(60), .replacements = 9}, point));
  };
  if (!Job::in_rank()) ::testing::internal::CaptureStderr();
  const testing::RankResult killed = job("killed", 0);
  if (!Job::in_rank()) {
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(killed.launch.exit_code, 0) << killed.report;
    EXPECT_FALSE(killed.launch.failure);
    EXPECT_THAT(said, ::testing::ContainsRegex("rank 1 killed by SIGKILL .*; all ranks had done "
                                               "their steps, so it is not started again"));
  }
  // Those that say themselves that something is wrong are started anew, to meet no one.
  for (const int code : {3, SIGABRT}) {
    const auto start = std::chrono::steady_clock::now();
    const testing::RankResult failed = job("failed" + std::to_string(code), code);
    if (Job::in_rank()) continue;
    EXPECT_EQ(failed.launch.exit_code, 1) << code;
    EXPECT_FALSE(failed.timed_out) << code;
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30)) << code;
    ASSERT_TRUE(failed.launch.failure) << code;
    EXPECT_EQ(failed.launch.failure->rank, 1) << code;
    EXPECT_THAT(failed.report, ::testing::HasSubstr("ended, and will not come")) << code;
  }
}

trace::CallBoard::Presence presence(const Communicator& comm) {
  return trace::CallBoard::inherit(process_env())->presence(comm.local_rank());
}

TEST(RollbackRecovery, SaysThatItHasFinishedUntilAnotherBegins) {
  testing::expect_ranks(2,
                        [](Communicator& comm) {
                          using Presence = trace::CallBoard::Presence;
                          RollbackRecovery run(comm);
                          EXPECT_EQ(presence(comm), Presence::kAtWork);
                          run.finish();
                          EXPECT_EQ(presence(comm), Presence::kAllFinished);
                          comm.duplicate().barrier();
                          EXPECT_EQ(presence(comm), Presence::kAllFinished);
                          const RollbackRecovery again(comm);
                          EXPECT_EQ(presence(comm), Presence::kAtWork);
                        },
                        {.replacements = 1});
}

TEST(Recovery, NoFailureIsSimulatedOnceARankHasFinished) {
  const testing::RankResult result = testing::run_ranks(
      3,
      [](Communicator& comm) {
        Net net(kWidth);
        Recovery run(comm, {.model = net.ptr()});
        run.finish();
        std::this_thread::sleep_for(seconds(5));  // one is due after at most 4.5 s
      },
      testing::gtest_point({.deadline = seconds(90),
                            .replacements = 999,
                            .simulate_failures = {{.every = seconds(3), .seed = 1}}},
                           "drill"));
  if (Job::in_rank()) return;
  EXPECT_EQ(result.launch.exit_code, 0) << result.report;
}

// Killed from outside at random moments, including the start.
TEST(Recovery, RandomKillsCostNoBit) {
  const int kills = testing::long_tests() ? 100 : 6;
  const int64_t steps = testing::long_tests() ? 12000 : 1000;
  const auto expected = run_job("undisturbed", steps, nothing);
  if (Job::in_rank()) {
    run_job("killed", steps, nothing);
    return;
  }
  ASSERT_FALSE(expected.empty());
  std::atomic<bool> over{false};
  int done = 0;
  std::thread killer([&] {
    const Place place(fs::temp_directory_path() /
                      ("lockstep-recovery-" + std::to_string(::getpid()) + "-killed"));
    std::mt19937 random(20);
    const int parent = ::getpid();
    while (!over && done < kills) {
      std::this_thread::sleep_for(
          milliseconds(std::uniform_int_distribution<int>(20, 600)(random)));
      const int64_t step = place.step();
      if (step < 0 || step > steps - 200) continue;
      std::vector<int> pids;
      std::error_code ignored;
      for (const auto& task :
           fs::directory_iterator("/proc/" + std::to_string(parent) + "/task", ignored)) {
        std::ifstream children(task.path() / "children");
        for (int pid = 0; children >> pid;) pids.push_back(pid);
      }
      if (pids.empty()) continue;
      ::kill(pids[std::uniform_int_distribution<size_t>(0, pids.size() - 1)(random)], SIGKILL);
      ++done;
    }
  });
  const auto found = run_job("killed", steps, nothing, 200);
  over = true;
  killer.join();
  if (found.empty()) return;
  EXPECT_GE(done, 2) << "the machine was too quick for the killer";
  std::cout << done << " kills, " << recoveries_of(found) << " recoveries of the oldest process\n";
  expect_same(found, expected);
}

}  // namespace
}  // namespace lockstep::inline v0::recovery_mp_test
