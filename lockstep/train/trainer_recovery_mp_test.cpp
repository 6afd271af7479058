// Trainer under a launcher that starts dead ranks anew: whatever a rank is doing when it is killed,
// the run ends as one that nothing happened to.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/recover/test_deaths.h"
#include "lockstep/recover/test_net.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/testing/preloaded.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/overlap.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/train/timeless_metrics_test.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::trainer_recovery_mp_test {
namespace {

using Net = recover_test::TestNet;
using recover_test::Deaths;
using recover_test::Moments;
using train_test::metrics_of;
namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr int64_t kSamples = 72, kBatch = 3, kWidth = 6;  // 8 steps an epoch
constexpr int64_t kSteps = 24;

struct Points {
  const Moments* moments;
  int64_t size() const { return kSamples; }
  data::Batch batch(std::span<const int64_t> indices) const {
    moments->at("loading");
    const at::Tensor ids =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {torch::sin(ids.unsqueeze(1) * 0.7 + at::arange(kWidth) * 1.3), ids};
  }
};

struct PointsLoss {
  Moments* moments;
  std::vector<int>* seen;

  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor logits = model(batch.input);
    if (logits.requires_grad()) {
      moments->at("forward");
      logits.register_hook([m = moments](const at::Tensor& gradient) {
        m->at("backward");
        return gradient;
      });
      const at::Tensor on_host = batch.target.cpu();
      const auto* ids = on_host.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < batch.target.numel(); ++i) ++(*seen)[static_cast<size_t>(ids[i])];
    } else {
      moments->at("evaluating", moments_step());
    }
    const at::Tensor labels = batch.target % 3;
    return {torch::nn::functional::cross_entropy(logits, labels), logits, labels};
  }
  int64_t moments_step() const { return *step; }
  const int64_t* step;
};

// How often this rank has seen each sample is its own, and what is to come out right.
class Watch final : public TrainCallback {
 public:
  Watch(Moments& moments, std::vector<int>& seen, int64_t& step)
      : moments_(moments), seen_(seen), step_(step) {}
  void on_step(const TrainerState& state, const StepResult&) override {
    moments_.done(state.step);
    step_ = state.step;
    moments_.at("stepped", state.step);
  }
  void on_log(const TrainerState& state, const LogEvent&) override {
    moments_.at("logged", state.step);
  }
  void on_evaluation(const TrainerState& state, const Evaluation&, bool, TrainControl&) override {
    moments_.at("evaluated", state.step);
  }
  void on_save(TrainerState& state, bool) override {
    moments_.at("saving", state.step);
    // While files are written.
    std::thread([this, step = state.step] { moments_.at("writing", step); }).detach();
  }
  std::string state() const override {
    std::ostringstream text;
    for (const int count : seen_) text << count << ' ';
    return text.str();
  }
  void set_state(const std::string& state) override {
    std::istringstream words(state);
    for (int& count : seen_) words >> count;
  }
  void add_state(const std::string& state) override {
    const std::vector<int> own = seen_;
    set_state(state);
    for (size_t i = 0; i < own.size(); ++i) seen_[i] += own[i];
  }

 private:
  Moments& moments_;
  std::vector<int>& seen_;
  int64_t& step_;
};

fs::path folder_of(const std::string& name) {
  const auto root = process_env()("TRAINER_RECOVERY_FOLDER");
  return fs::path(root.value_or("")) / name;
}
bool in_rank() {
  return process_env()("RANK").has_value();
}

struct How {
  int ranks = kRanks;
  std::string strategy = "ddp";
  Deaths deaths = {};
  int replacements = 0;
  int64_t workers = 1;
  bool async_save = false;
  bool fp16 = false;
  bool resume = false;
  int64_t max_steps = kSteps;
  int64_t copy_every = 4;
  std::string trace_steps = "";
  bool shrinks = false;
};

void train(Communicator& comm, const std::string& name, const How& how) {
  const int pid = ::getpid();
  EXPECT_EQ(comm.device().is_cpu(), !process_env()("LOCKSTEP_DEVICE"));
  Moments moments(how.deaths);
  std::vector<int> seen(kSamples, 0);
  int64_t step = 0;
  const Points points{&moments};
  const fs::path folder = folder_of(name);
  const TrainingArguments args{.output_dir = folder.string(),
                               .per_device_train_batch_size = kBatch,
                               .per_device_eval_batch_size = 5,
                               .gradient_accumulation_steps = how.strategy == "ddp" ? 2 : 1,
                               .num_train_epochs = 6,
                               .max_steps = how.max_steps,
                               .learning_rate = 0.01,
                               .fp16 = how.fp16,
                               .logging_steps = 2,
                               .eval_strategy = "epoch",
                               .save_strategy = "steps",
                               .save_steps = 3,
                               .save_total_limit = 2,
                               .async_save = how.async_save,
                               .dataloader_num_workers = how.workers,
                               .disable_tqdm = true,
                               .trace_steps = how.trace_steps,
                               .resume_from_checkpoint = how.resume ? "true" : ""};
  moments.at("starting", 0);
  Net net(kWidth);
  torch::manual_seed(100 + static_cast<uint64_t>(comm.rank()));
  Trainer<Net, Points, PointsLoss> trainer(
      {.model = net,
       .comm = comm,
       .args = args,
       .train_dataset = &points,
       .eval_dataset = &points,
       .compute_loss = {&moments, &seen, &step},
       .callbacks = {std::make_shared<Watch>(moments, seen, step)},
       .strategy = make_strategy(how.strategy),
       .copy_every = how.copy_every});
  if (comm.generation() > 0) {
    EXPECT_THROW(trainer.evaluate(), InvalidArgument) << "before train()";
  }
  const TrainOutput output = trainer.train();
  EXPECT_EQ(::getpid(), pid);
  EXPECT_EQ(output.global_step, how.max_steps);
  if (comm.generation() > 0) {
    EXPECT_EQ(trace::CallBoard::inherit(process_env())->presence(comm.local_rank()),
              trace::CallBoard::Presence::kAllFinished)
        << "behind it no failure is simulated";
  }
  const Metrics metrics = trainer.evaluate();
  const at::Tensor all_seen = at::tensor(seen, at::kInt);
  trainer.comm().all_reduce(all_seen);
  NamedTensors all = to_named_tensors(net->named_buffers());
  for (const auto& entry : parameters_of(net)) all.push_back(entry);
  auto* divided = dynamic_cast<ZeroOptimizer*>(&trainer.optimizer());
  const Safetensors state =
      divided != nullptr ? divided->state_on_root() : optimizer_state(trainer.optimizer());
  for (const auto& [key, tensor] : state.tensors) all.emplace_back("optimizer." + key, tensor);
  all.emplace_back("seen", all_seen);
  all.emplace_back(
      "loss",
      at::tensor({output.training_loss, find_metric(metrics, "eval_loss").value()}, at::kDouble));
  write_safetensors(folder / ("rank" + std::to_string(trainer.comm().rank())), all);
}

size_t bars_in(const fs::path& picture) {
  const std::string text = read_small_file(picture);
  size_t bars = 0;
  for (size_t at = 0; (at = text.find("<rect", at)) != std::string::npos; ++at) ++bars;
  return bars;
}

class TrainerRecovery : public ::testing::Test {
 protected:
  TrainerRecovery()
      : root_(fs::temp_directory_path() /
              ("lockstep-trainer-recovery-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    if (in_rank()) return;
    fs::create_directories(root_);
    ::setenv("TRAINER_RECOVERY_FOLDER", root_.c_str(), 1);
  }
  ~TrainerRecovery() override {
    std::error_code ignored;
    if (!in_rank()) fs::remove_all(root_, ignored);
  }

  void run(const std::string& name, const How& how) {
    testing::expect_ranks(
        how.ranks, [&](Communicator& comm) { train(comm, name, how); },
        {.deadline = seconds(testing::long_tests() ? 560 : 100),
         .replacements = how.replacements,
         .shrinks = how.shrinks},
        name);
  }

  void expect_same(const std::string& found, const std::string& expected, int ranks = kRanks) {
    if (in_rank() || HasFailure()) return;
    for (int r = 0; r < ranks; ++r) {
      const std::string file = "rank" + std::to_string(r);
      const Safetensors a = read_safetensors(root_ / found / file),
                        b = read_safetensors(root_ / expected / file);
      ASSERT_EQ(a.tensors.size(), b.tensors.size());
      for (const auto& [name, tensor] : b.tensors) {
        ASSERT_NE(a.find(name), nullptr) << name;
        EXPECT_TRUE(at::equal(*a.find(name), tensor)) << name << " of rank " << r;
      }
    }
    EXPECT_EQ(metrics_of(root_ / found), metrics_of(root_ / expected));
    EXPECT_FALSE(metrics_of(root_ / found).empty());
    // Of the first step, and not of what a new rank has missed; with as many parts.
    if (fs::exists(root_ / found / "memory.svg")) {
      EXPECT_EQ(bars_in(root_ / found / "memory.svg"), bars_in(root_ / expected / "memory.svg"));
    }
    EXPECT_EQ(checkpoint_steps(root_ / found), checkpoint_steps(root_ / expected));
    for (const auto& entry : fs::directory_iterator(root_ / found))
      EXPECT_THAT(entry.path().filename().string(),
                  ::testing::Not(::testing::HasSubstr("partial")));
  }

  fs::path root_;
};

TEST_F(TrainerRecovery, ADeathAtAnyMomentCostsNoBitAndNoSample) {
  const How quiet{.max_steps = kSteps};
  run("undisturbed", quiet);
  How killed = quiet;
  killed.deaths = {{"loading", 1, 1, 0},  {"forward", 2, 0, 0},     {"backward", 4, 2, 0},
                   {"stepped", 5, 1, 1},  {"logged", 6, 0, 1},      {"saving", 9, 2, 1},
                   {"writing", 12, 0, 2}, {"evaluating", 16, 1, 2}, {"evaluated", 16, 0, 3},
                   {"writing", 18, 1, 3}, {"loading", 20, 2, 2},    {"evaluated", 24, 0, 4},
                   {"saving", 24, 1, 4}};
  killed.replacements = 20;
  run("killed", killed);
  expect_same("killed", "undisturbed");
  if (in_rank() || HasFailure()) return;
  const Safetensors result = read_safetensors(root_ / "killed" / "rank0");
  // 24 steps of 3 ranks, 2 batches of 3: 432 samples, 6 times each.
  EXPECT_TRUE(at::equal(*result.find("seen"), at::full({kSamples}, 6, at::kInt)));
}

TEST_F(TrainerRecovery, WhileCheckpointsAreWrittenAsideAndInHalfPrecision) {
  const How quiet{.async_save = true, .fp16 = true};
  run("undisturbed", quiet);
  How killed = quiet;
  killed.deaths = {{"forward", 4, 0, 0},
                   {"writing", 6, 1, 0},
                   {"backward", 10, 2, 0},
                   {"saving", 12, 0, 1},
                   {"stepped", 13, 1, 1}};
  killed.replacements = 9;
  run("killed", killed);
  expect_same("killed", "undisturbed");
}

TEST_F(TrainerRecovery, UnderEveryStrategyThatRebinds) {
  for (const std::string strategy : {"average", "ring", "naive-ring", "horovod"}) {
    const How quiet{.strategy = strategy, .workers = 0, .max_steps = 12};
    run(strategy, quiet);
    How killed = quiet;
    killed.deaths = {{"loading", 2, 1, 0}, {"backward", 5, 0, 0}, {"logged", 8, 2, 0}};
    killed.replacements = 5;
    run(strategy + "-killed", killed);
    expect_same(strategy + "-killed", strategy);
  }
}

TEST_F(TrainerRecovery, WithLogicalRanksStreamsIncluded) {
  const How quiet{.ranks = 2, .strategy = "logical4", .max_steps = 12};
  run("undisturbed", quiet);
  How killed = quiet;
  killed.deaths = {{"forward", 1, 0, 0}, {"backward", 5, 1, 0}, {"logged", 8, 0, 1}};
  killed.replacements = 5;
  run("killed", killed);
  expect_same("killed", "undisturbed", 2);
}

// --on-failure shrink: the others share the samples of the same steps, in batches of different
// sizes, and go on with what dead ranks had added up.
TEST_F(TrainerRecovery, TheOthersGoOnWithoutRanksThatDie) {
  run("undisturbed", {.ranks = 4});
  run("shrunk", {.ranks = 4,
                 .deaths = {{"backward", 4, 0, 0}, {"saving", 9, 3, 0}, {"evaluating", 18, 1, 0}},
                 .shrinks = true});
  if (in_rank() || HasFailure()) return;
  const Safetensors left = read_safetensors(root_ / "shrunk" / "rank0"),
                    all = read_safetensors(root_ / "undisturbed" / "rank0");
  EXPECT_FALSE(fs::exists(root_ / "shrunk" / "rank1")) << "one was left";
  EXPECT_TRUE(at::equal(*left.find("seen"), *all.find("seen"))) << "each sample as often";
  // Dropout draws other numbers on other ranks.
  EXPECT_TRUE(at::allclose(*left.find("loss"), *all.find("loss"), 0.2));
  const auto steps_of = [](const std::vector<std::string>& lines) {
    std::vector<std::string> steps;
    for (const std::string& line : lines) {
      const auto json = nlohmann::json::parse(line);
      steps.push_back(json.at("type").get<std::string>() + json.at("step").dump());
    }
    return steps;
  };
  EXPECT_EQ(steps_of(metrics_of(root_ / "shrunk")), steps_of(metrics_of(root_ / "undisturbed")));
  EXPECT_EQ(checkpoint_steps(root_ / "shrunk"), checkpoint_steps(root_ / "undisturbed"));
}

// Whichever ranks have which of them.
TEST_F(TrainerRecovery, LogicalRanksKeepTheirBitsOnTheRanksThatAreLeft) {
  const How quiet{.ranks = 4, .strategy = "logical4", .max_steps = 12};
  run("undisturbed", quiet);
  How shrunk = quiet;
  shrunk.shrinks = true;
  shrunk.deaths = {{"forward", 4, 0, 0}, {"forward", 4, 2, 0}, {"logged", 8, 3, 0}};
  run("shrunk", shrunk);
  if (in_rank() || HasFailure()) return;
  const Safetensors left = read_safetensors(root_ / "shrunk" / "rank0"),
                    all = read_safetensors(root_ / "undisturbed" / "rank0");
  for (const auto& [name, tensor] : all.tensors) {
    const at::Tensor* found = left.find(name);
    ASSERT_NE(found, nullptr) << name;
    if (name == "loss")  // of evaluations, whose batches are others
      EXPECT_TRUE(at::allclose(*found, tensor, 1e-6)) << name;
    else
      EXPECT_TRUE(at::equal(*found, tensor)) << name;
  }
}

// Ranks are replaced within the traced steps. What the timelines of the others had by then is left
// out, and so are the calls that the dead rank has left them in.
TEST_F(TrainerRecovery, ATraceHasTheStepsOfAllRanksSinceTheReplacement) {
  const How how{
      .deaths = {{"backward", 6, 1, 0}}, .replacements = 2, .max_steps = 10, .trace_steps = "3:9"};
  run("traced", how);
  if (in_rank() || HasFailure()) return;
  const std::string file = root_ / "traced" / "trace.json";
  const timeline::ReadTrace trace = timeline::parse_file(read_named_file(file), file);
  EXPECT_EQ(trace.steps, "6:9");
  EXPECT_EQ(trace.lost_calls, 0);
  const std::vector<timeline::RankOverlap> ranks = timeline::overlap_of(trace.events);
  ASSERT_EQ(ranks.size(), static_cast<size_t>(kRanks));
  for (const timeline::RankOverlap& rank : ranks) {
    EXPECT_EQ(rank.steps, 4) << "rank " << rank.rank;
    EXPECT_GE(rank.collectives, 4) << "rank " << rank.rank;
    EXPECT_LT(rank.communication, rank.time) << "rank " << rank.rank << " is in no call for ever";
  }
}

// A rank that dies before the run has begun makes its others begin again, too; nothing has been
// written by then.
TEST_F(TrainerRecovery, AFormerRunStaysWhereARankDiesAtTheStart) {
  for (const std::string strategy : {"ddp", "zero1", "fsdp"}) {
    const How how{.strategy = strategy,
                  .deaths = {{"starting", 0, 1, 0}, {"starting", 0, 2, 0}},
                  .replacements = 4,
                  .max_steps = 4};
    const fs::path folder = root_ / strategy;
    if (!in_rank()) {
      fs::create_directories(folder);
      std::ofstream(folder / "metrics.jsonl") << "of a former run\n";
    }
    run(strategy, how);
    if (in_rank() || HasFailure()) continue;
    std::ifstream file(folder / "previous" / "metrics.jsonl");
    std::string line;
    std::getline(file, line);
    EXPECT_EQ(line, "of a former run") << strategy;
    EXPECT_GE(metrics_of(folder).size(), 2u) << "steps 2 and 4";
  }
}

// Whose state is divided: all go back to the latest copies.
TEST_F(TrainerRecovery, WithDividedStates) {
  const bool on_devices = process_env()("LOCKSTEP_DEVICE").has_value();
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    if (on_devices && strategy != "fsdp") continue;  // which is all that the others are there
    const How quiet{.strategy = strategy,
                    .fp16 = strategy == "zero2",
                    .copy_every = strategy == "zero3" ? 1 : 4};
    run(strategy, quiet);
    How killed = quiet;
    killed.deaths = {{"loading", 1, 1, 0}, {"forward", 2, 0, 0},     {"backward", 5, 2, 0},
                     {"stepped", 7, 1, 1}, {"saving", 9, 0, 1},      {"writing", 12, 2, 1},
                     {"logged", 14, 0, 2}, {"evaluating", 16, 1, 2}, {"saving", 24, 2, 2}};
    killed.replacements = 14;
    run(strategy + "-killed", killed);
    expect_same(strategy + "-killed", strategy);
  }
}

// This program once more, on devices that the host plays.
TEST(TrainerRecoveryOnDevices, IsTheSame) {
  if (kSanitized) GTEST_SKIP() << "the sanitizers' library comes before all that is preloaded";
  SubprocessOptions options;
  options.command = {fs::read_symlink("/proc/self/exe"),
                     "--gtest_filter=TrainerRecovery.WhileCheckpoints*:TrainerRecovery.AFormerRun*:"
                     "TrainerRecovery.WithDivided*"};
  std::vector<std::string> more = testing::fake_device_variables(LOCKSTEP_FAKE_CUDA_PRELOAD, 3);
  more.emplace_back("LOCKSTEP_DEVICE=cuda");
  options.env = testing::environment_with(more);
  Subprocess process(options);
  EXPECT_EQ(process.wait(Deadline::seconds(400)).exit_code, 0) << "what it said is above";
}

}  // namespace
}  // namespace lockstep::inline v0::trainer_recovery_mp_test
