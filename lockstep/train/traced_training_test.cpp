// What the loops that train mark in a Timeline, and when they write it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/named_file.h"
#include "lockstep/device/fake_nvtx_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/overlap.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/class_loss_test.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::traced_training_test {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using timeline::ReadEvent;
using timeline::ReadTrace;

ReadTrace read(const fs::path& path) {
  return timeline::parse_file(read_named_file(path), path.string());
}

// A rank's marked events by name.
std::map<std::string, std::vector<ReadEvent>> marked(const ReadTrace& trace, int rank) {
  std::map<std::string, std::vector<ReadEvent>> found;
  for (const ReadEvent& event : trace.events)
    if (event.rank == rank && event.category == timeline::kMarked)
      found[event.name].push_back(event);
  return found;
}

bool within(const ReadEvent& inner, const ReadEvent& outer) {
  return outer.begin_ns <= inner.begin_ns && inner.end_ns <= outer.end_ns;
}

TrainTask two_epochs_of(int64_t steps) {
  return {.steps_per_epoch = steps,
          .begin_epoch = [](int64_t, int64_t) {},
          .step = []() -> StepResult { return {.loss = 1.0, .samples = 1}; },
          .evaluate = [] { return Evaluation(); }};
}

TrainLoopOptions traced(TraceSteps steps, const fs::path& file) {
  return {.epochs = 2,
          .save_every = 4,
          .timeline = std::make_shared<Timeline>(),
          .trace_steps = steps,
          .trace_file = file};
}

TEST(TracedLoop, ShowsTheStepsAndWhatLiesBetween) {
  const TestDirectory dir;
  const fs::path file = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    TrainLoop loop(comm, two_epochs_of(3), traced({3, 4}, file));
    loop.run();
  });
  const ReadTrace trace = read(file);
  EXPECT_EQ(trace.steps, "3:4");
  for (int rank = 0; rank < 2; ++rank) {
    auto events = marked(trace, rank);
    ASSERT_EQ(events["step"].size(), 2U);
    EXPECT_EQ(events["step"][0].step, 3);
    EXPECT_EQ(events["step"][1].step, 4);
    // At the end of the epoch after step 3, and after step 4.
    EXPECT_EQ(events["evaluation"].size(), 1U);
    EXPECT_EQ(events["checkpoint"].size(), 2U);
  }
}

TEST(TracedLoop, ARunThatEndsWithinThemShowsWhatThereWas) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    TrainLoop loop(comm, two_epochs_of(3), traced({5, 100}, dir / "short.json"));
    loop.run();
    TrainLoop last(comm, two_epochs_of(3), traced({6, 6}, dir / "last.json"));
    last.run();
    TrainLoop beyond(comm, two_epochs_of(3), traced({7, 9}, dir / "beyond.json"));
    beyond.run();
  });
  EXPECT_EQ(read(dir / "short.json").steps, "5:6");
  EXPECT_EQ(marked(read(dir / "last.json"), 1)["step"].size(), 1U);
  EXPECT_FALSE(fs::exists(dir / "beyond.json"));
}

TEST(TracedLoop, AResumedRunShowsItsOwnSteps) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto resumed_at = [&](int64_t step, const TraceSteps& steps, const char* file) {
      TrainLoop loop(comm, two_epochs_of(3), traced(steps, dir / std::string(file)));
      loop.state().step = step;
      loop.state().epoch = step / 3;
      loop.state().step_in_epoch = step % 3;
      loop.run();
    };
    resumed_at(4, {2, 5}, "part.json");
    resumed_at(4, {2, 4}, "past.json");
  });
  EXPECT_EQ(read(dir / "part.json").steps, "5:5");
  EXPECT_FALSE(fs::exists(dir / "past.json")) << "a former run's trace stays as it is";
}

// As where a rank dies and all go on from an earlier point.
TEST(TracedLoop, AStepThatFailsEndsTheTimelineAndTheNextRunBeginsAnew) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    bool fails = true;
    TrainTask task = two_epochs_of(6);
    int64_t steps = 0;
    task.step = [&]() -> StepResult {
      if (++steps == 3 && std::exchange(fails, false)) throw Error("a step fails");
      return {.loss = 1.0, .samples = 1};
    };
    TrainLoopOptions options = traced({2, 5}, dir / "trace.json");
    TrainLoop loop(comm, task, options);
    EXPECT_THROW(loop.run(), Error);
    EXPECT_FALSE(options.timeline->on());
    loop.run();
  });
  const ReadTrace trace = read(dir / "trace.json");
  EXPECT_EQ(trace.steps, "3:5") << "step 2 was of the run that failed";
  auto events = marked(trace, 1);
  ASSERT_EQ(events["step"].size(), 3U);
  EXPECT_EQ(events["step"][0].step, 3);
}

TEST(TracedLoop, ATraceThatCannotBeWrittenIsAWarning) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    TrainLoop loop(comm, two_epochs_of(3), traced({2, 3}, dir / "nowhere/trace.json"));
    loop.run();
    EXPECT_EQ(loop.state().step, 6);
  });
}

TEST(TracedLoop, NeedsATimelineAndAFile) {
  testing::run_threads(1, [&](Communicator& comm) {
    EXPECT_THROW(TrainLoop(comm, two_epochs_of(3), {.trace_steps = TraceSteps{1, 2}}),
                 InvalidArgument);
  });
}

struct Points {
  at::Tensor input = at::linspace(-1, 1, 64, at::kDouble).view({32, 2}).contiguous();
  at::Tensor target = (input.select(1, 0) > 0).to(at::kLong);
  int64_t size() const { return 32; }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

torch::nn::Linear make_model() {
  torch::nn::Linear model(2, 2);
  model->to(at::kDouble);
  return model;
}

TEST(TracedTrainer, PartsOfAStepAndTheWritingOfACheckpoint) {
  const TestDirectory dir;
  const Points points;
  testing::run_threads(2, [&](Communicator& comm) {
    Trainer<torch::nn::Linear, Points, ClassLoss> trainer(
        {.model = make_model(),
         .comm = comm,
         .args = {.output_dir = dir / "run",
                  .per_device_train_batch_size = 4,
                  .max_steps = 4,
                  .save_steps = 3,
                  .disable_tqdm = true,
                  .trace_steps = "2:3"},
         .train_dataset = &points});
    trainer.train();
  });
  const ReadTrace trace = read(dir / "run/trace.json");
  EXPECT_EQ(trace.steps, "2:3");
  for (int rank = 0; rank < 2; ++rank) {
    auto events = marked(trace, rank);
    ASSERT_EQ(events["step"].size(), 2U);
    for (const char* part : {"data", "forward", "backward", "optimizer"}) {
      ASSERT_EQ(events[part].size(), 2U) << part;
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(within(events[part][i], events["step"][i]));
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LE(events["data"][i].end_ns, events["forward"][i].begin_ns);
      EXPECT_LE(events["forward"][i].end_ns, events["backward"][i].begin_ns);
      EXPECT_LE(events["backward"][i].end_ns, events["optimizer"][i].begin_ns);
    }
    EXPECT_EQ(events["checkpoint"].size(), 1U);
    ASSERT_EQ(events["checkpoint write"].size(), 1U) << "on the writer's thread";
    EXPECT_TRUE(within(events["checkpoint write"][0], events["checkpoint"][0]))
        << "without async_save the loop waits for it";
  }
  for (const timeline::RankOverlap& rank : timeline::overlap_of(trace.events)) {
    EXPECT_EQ(rank.steps, 2);
    EXPECT_GE(rank.collectives, 2) << "a bucket in each step";
    EXPECT_EQ(rank.communication, rank.hidden + rank.beside + rank.waited);
  }
}

struct SeesRanges : TrainCallback {
  explicit SeesRanges(const device::FakeNvtx& the_nvtx) : nvtx(the_nvtx) {}
  void on_end(const TrainerState&) override { seen = nvtx.ranges(); }
  const device::FakeNvtx& nvtx;
  std::vector<std::string> seen;  // of the rank's thread
};

TEST(TracedTrainer, NvtxMarksAllStepsAndWritesNothing) {
  const TestDirectory dir;
  const Points points;
  const device::FakeNvtx nvtx;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto sees = std::make_shared<SeesRanges>(nvtx);
    Trainer<torch::nn::Linear, Points, ClassLoss> trainer(
        {.model = make_model(),
         .comm = comm,
         .args = {.output_dir = dir / "run",
                  .per_device_train_batch_size = 4,
                  .max_steps = 2,
                  .save_steps = 2,
                  .disable_tqdm = true,
                  .nvtx = true},
         .train_dataset = &points,
         .callbacks = {sees}});
    EXPECT_NE(trainer.timeline(), nullptr) << "callbacks may mark parts of their own";
    trainer.train();
    for (const std::string step : {"step 1", "step 2"}) {
      EXPECT_THAT(sees->seen, Contains(step));
      for (const char* part : {"/data", "/forward", "/backward", "/optimizer"})
        EXPECT_THAT(sees->seen, Contains(step + part));
      EXPECT_THAT(sees->seen, Contains(StartsWith(step + "/backward/all_reduce: bucket 0")));
    }
    EXPECT_THAT(sees->seen, Contains("checkpoint"));
  });
  EXPECT_EQ(nvtx.open(), 0U);
  EXPECT_FALSE(fs::exists(dir / "run/trace.json"));
}

TEST(TracedTrainer, MistakesAreNamed) {
  const auto error_of = [](TrainingArguments args) -> std::string {
    try {
      check(args);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({.trace_steps = "3:1"}), HasSubstr("trace_steps is '3:1'; give the first"));
  EXPECT_THAT(error_of({.trace_operators = true}),
              HasSubstr("trace_operators is on, and no steps"));
  EXPECT_EQ(error_of({.trace_steps = "1:3", .trace_operators = true}), "no error");
  if (!device::has_nvtx()) {
    EXPECT_THAT(error_of({.nvtx = true}), HasSubstr("nvtx is on, and this libtorch was built"));
  }
  const device::FakeNvtx nvtx;
  EXPECT_EQ(error_of({.nvtx = true}), "no error");
}

TEST(TracedAccelerator, MarksWhatWasPrepared) {
  const TestDirectory dir;
  const Points points;
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Linear net = make_model();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    data::SequentialSampler sampler(points.size());
    data::Loader<Points> batches(points, sampler, {.batch_size = 8});
    const auto timeline = std::make_shared<Timeline>();
    Accelerator accelerator(comm, {.timeline = timeline});
    auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
    timeline->start(comm);
    int64_t step = 0;
    for (auto& batch : loader) {
      const auto span = timeline->span("step", ++step);
      optimizer.zero_grad();
      accelerator.backward(
          [&] { return at::cross_entropy_loss(model(batch.input), batch.target); });
      optimizer.step();
    }
    accelerator.save_state(dir / "state");
    timeline->write(accelerator.comm(), dir / "trace.json");
  });
  auto events = marked(read(dir / "trace.json"), 1);
  const size_t steps = events["step"].size();
  EXPECT_EQ(steps, 2U);
  for (const char* part : {"forward", "backward", "optimizer"})
    EXPECT_EQ(events[part].size(), steps) << part;
  EXPECT_EQ(events["data"].size(), steps + 1) << "the last finds the end";
  EXPECT_EQ(events["checkpoint"].size(), 1U);
  EXPECT_LE(events["forward"][0].end_ns, events["backward"][0].begin_ns);
}

}  // namespace lockstep::inline v0::traced_training_test
