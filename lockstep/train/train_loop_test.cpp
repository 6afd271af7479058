#include "lockstep/train/train_loop.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <limits>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/callbacks.h"

namespace lockstep::inline v0::train_loop_test {

// Remembers what happened as one line each.
class Recorder final : public TrainCallback {
 public:
  void on_log(const TrainerState& state, const LogEvent& event) override {
    lines.push_back("log " + std::to_string(state.step) + " " + std::to_string(event.loss));
  }
  void on_epoch(const TrainerState& state, const EpochEvent& event) override {
    lines.push_back("epoch " + std::to_string(state.epoch) + "+" +
                    std::to_string(state.step_in_epoch) + " " + std::to_string(event.loss) +
                    (event.best ? " best" : ""));
  }
  void on_save(TrainerState& state, bool best) override {
    lines.push_back("save " + std::to_string(state.step) + (best ? " best" : ""));
  }
  std::vector<std::string> lines;
};

struct Script {
  std::vector<double> accuracies;
  std::vector<std::string> calls;
  size_t evaluations = 0;

  // Rank r's loss at its n-th step is n + 10 r, over r + 1 samples.
  TrainTask task(int rank, int64_t steps_per_epoch) {
    return {.steps_per_epoch = steps_per_epoch,
            .begin_epoch =
                [this](int64_t epoch, int64_t first) {
                  calls.push_back(std::to_string(epoch) + "+" + std::to_string(first));
                },
            .step = [this, rank]() -> StepResult {
              ++steps;
              return {.loss = static_cast<double>(steps + 10 * rank), .samples = rank + 1};
            },
            .evaluate = [this]() -> Evaluation {
              Evaluation evaluation;
              evaluation.accuracy = accuracies.at(evaluations++);
              return evaluation;
            }};
  }
  int steps = 0;
};

TEST(TrainLoop, LogsSavesAndEvaluatesWithLossesWeightedBySamples) {
  testing::run_threads(2, [](Communicator& comm) {
    Script script{.accuracies = {0.5, 0.4}, .calls = {}};
    const auto recorder = std::make_shared<Recorder>();
    TrainLoop trainer(comm, script.task(comm.rank(), 3),
                      {.epochs = 2, .log_every = 2, .save_every = 1});
    trainer.add(recorder);
    trainer.run();
    // (1 * n + 2 * (n + 10)) / 3 = n + 20 / 3
    const std::vector<std::string> expected{
        "save 1",          "log 2 8.166667",      "save 2", "epoch 1+0 8.666667 best",
        "save 3 best",     "log 4 10.166667",     "save 4", "save 5",
        "log 6 12.166667", "epoch 2+0 11.666667", "save 6"};
    EXPECT_EQ(recorder->lines, expected);
    EXPECT_EQ(script.calls, (std::vector<std::string>{"0+0", "1+0"}));
    EXPECT_EQ(trainer.state().best_step, 3);
    EXPECT_EQ(trainer.state().best_score, 0.5);
    EXPECT_EQ(trainer.state().accuracy, 0.4);
    EXPECT_EQ(trainer.state().samples, 18);  // 1 and 2 a step
  });
}

// Remembers how many samples there were, and the seconds that the rates imply.
class Samples final : public TrainCallback {
 public:
  void on_log(const TrainerState& state, const LogEvent&) override { add("log", state); }
  void on_evaluation(const TrainerState& state, const Evaluation&, bool, TrainControl&) override {
    add("evaluation", state);
  }
  void on_epoch(const TrainerState& state, const EpochEvent& event) override {
    add("epoch", state);
    of_epochs += event.seconds * event.samples_per_s;
  }
  void on_save(TrainerState& state, bool) override { add("save", state); }
  std::vector<std::string> lines;
  double of_epochs = 0;

 private:
  void add(const std::string& what, const TrainerState& state) {
    lines.push_back(what + " " + std::to_string(state.step) + ": " + std::to_string(state.samples));
  }
};

// Batches of 4 on rank 0 and 3 on rank 1; the third and last of an epoch has one sample less, and
// none on rank 1.
TEST(TrainLoop, CountsTheSamplesThatThereWere) {
  testing::run_threads(2, [](Communicator& comm) {
    const int64_t mine = comm.rank() == 0 ? 4 : 3;
    int64_t step = 0;
    const auto state = std::make_shared<TrainerState>();
    std::vector<int64_t> evaluated;  // after so many samples, as an evaluation finds them
    TrainTask task{.steps_per_epoch = 3,
                   .begin_epoch = [](int64_t, int64_t) {},
                   .step = [&]() -> StepResult {
                     const bool last = ++step % 3 == 0;
                     return {.loss = 1, .samples = !last ? mine : comm.rank() == 0 ? 3 : 0};
                   },
                   .evaluate =
                       [&] {
                         evaluated.push_back(state->samples);
                         return Evaluation{};
                       }};
    const TrainLoopOptions options{
        .epochs = 2, .log_every = 4, .save_every = 2, .evaluate_every = 1};
    const auto samples = std::make_shared<Samples>();
    TrainLoop loop(comm, task, options, state);
    loop.add(samples);
    loop.run();
    EXPECT_EQ(evaluated, (std::vector<int64_t>{7, 14, 17, 24, 31, 34}));
    const std::vector<std::string> expected{"evaluation 1: 7",  "evaluation 2: 14", "save 2: 14",
                                            "evaluation 3: 17", "epoch 3: 17",      "save 3: 17",
                                            "log 4: 24",        "evaluation 4: 24", "save 4: 24",
                                            "evaluation 5: 31", "evaluation 6: 34", "epoch 6: 34",
                                            "save 6: 34"};
    EXPECT_EQ(samples->lines, expected);
    EXPECT_NEAR(samples->of_epochs, 34, 1e-9);
  });
}

TEST(TrainLoop, StopsAtMaxStepsAndGoesOnFromThere) {
  testing::run_threads(1, [](Communicator& comm) {
    Script script{.accuracies = {0.5, 0.6, 0.7}, .calls = {}};
    const auto recorder = std::make_shared<Recorder>();
    TrainLoop first(comm, script.task(0, 3), {.epochs = 2, .max_steps = 4, .log_every = 100});
    first.add(recorder);
    first.run();
    EXPECT_EQ(recorder->lines.back(), "save 4 best");
    EXPECT_EQ(first.state().epoch, 1);
    EXPECT_EQ(first.state().step_in_epoch, 1);

    TrainLoop second(comm, script.task(0, 3), {.epochs = 2, .log_every = 100});
    second.add(recorder);
    second.state() = first.state();
    second.of_epoch() = first.of_epoch();
    second.run();
    EXPECT_EQ(script.calls.back(), "1+1");
    EXPECT_EQ(recorder->lines[recorder->lines.size() - 2], "epoch 2+0 5.000000 best");
    EXPECT_EQ(second.state().step, 6);
    second.run();  // nothing is left
    EXPECT_EQ(second.state().step, 6);
  });
}

// A signal that comes to the last rank, as it were, at its step `told`.
struct Told {
  int told = 0;
  std::function<int()> on(Communicator& comm, const Script& script) const {
    return [&comm, &script, at = told] {
      return comm.rank() == comm.size() - 1 && script.steps >= at ? SIGTERM : 0;
    };
  }
};

TEST(TrainLoop, ASignalToOneRankStopsAllAfterTheSameStepSavedAndTheRestGoesOnFromThere) {
  testing::run_threads(2, [](Communicator& comm) {
    // A signal before the first look, which is after the first step: the one that is sure to be.
    Script script{.accuracies = {0.5, 0.6}, .calls = {}};
    const auto recorder = std::make_shared<Recorder>();
    const TrainLoopOptions plain{.epochs = 2, .log_every = 100, .stop_signal = nullptr};
    TrainLoopOptions options = plain;
    options.stop_signal = Told{1}.on(comm, script);
    TrainLoop first(comm, script.task(comm.rank(), 3), options);
    first.add(recorder);
    first.run();
    EXPECT_EQ(first.stopped_by(), SIGTERM);
    EXPECT_EQ(first.state().step, 1);
    EXPECT_EQ(recorder->lines, (std::vector<std::string>{"save 1"}))
        << "no evaluation: time is short";

    TrainLoop second(comm, script.task(comm.rank(), 3), plain);
    second.add(recorder);
    second.state() = first.state();
    second.of_epoch() = first.of_epoch();
    second.run();
    EXPECT_EQ(second.stopped_by(), 0);
    EXPECT_EQ(second.state().step, 6);
    EXPECT_EQ(recorder->lines,
              (std::vector<std::string>{"save 1", "epoch 1+0 8.666667 best", "save 3 best",
                                        "epoch 2+0 11.666667 best", "save 6 best"}))
        << "as of a run that nothing happened to";
  });
}

TEST(TrainLoop, ASignalAtTheEndOfAnEpochEndsItAndOneAtTheEndOfTheRunIsTooLate) {
  testing::run_threads(2, [](Communicator& comm) {
    for (const int64_t epochs : {1, 2}) {
      Script script{.accuracies = {0.5, 0.6}, .calls = {}};
      const auto recorder = std::make_shared<Recorder>();
      TrainLoop loop(comm, script.task(comm.rank(), 1),
                     {.epochs = epochs, .stop_signal = Told{1}.on(comm, script)});
      loop.add(recorder);
      loop.run();
      EXPECT_EQ(loop.stopped_by(), epochs == 1 ? 0 : SIGTERM);
      EXPECT_EQ(recorder->lines,
                (std::vector<std::string>{"epoch 1+0 7.666667 best", "save 1 best"}))
          << "saved once";
      EXPECT_EQ(loop.state().epoch, 1);
    }
  });
}

TEST(TrainLoop, RefusesNonsense) {
  testing::run_threads(1, [](Communicator& comm) {
    Script script;
    EXPECT_THROW(TrainLoop(comm, script.task(0, 0), {}), InvalidArgument);
    EXPECT_THROW(TrainLoop(comm, script.task(0, 1), {.log_every = 0}), InvalidArgument);
    TrainLoop trainer(comm, script.task(0, 3), {});
    trainer.state().step_in_epoch = 3;
    EXPECT_THROW(trainer.run(), InvalidArgument);
  });
}

TEST(TrainLoop, ALossThatIsNoNumberEndsTheRun) {
  testing::run_threads(2, [](Communicator& comm) {
    TrainTask task{.steps_per_epoch = 5,
                   .begin_epoch = [](int64_t, int64_t) {},
                   .step = [&]() -> StepResult {
                     return {
                         .loss = comm.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1,
                         .samples = 1};
                   },
                   .evaluate = {}};
    TrainLoop trainer(comm, task, {.log_every = 1});
    EXPECT_THROW(trainer.run(), Error);
  });
}

// A bar ends at all of what was asked for, not at the part of an epoch that it is.
TEST(ProgressCallback, ABarUnderMaxStepsIsOfTheStepsThatThereWillBe) {
  const auto steps = [](int64_t max_steps, int64_t epoch, int64_t in_epoch) {
    return steps_of_epoch(
        {.epoch = epoch, .step_in_epoch = in_epoch, .step = epoch * 100 + in_epoch}, 100,
        max_steps);
  };
  EXPECT_EQ(steps(6, 0, 6), 6);
  EXPECT_EQ(steps(150, 0, 99), 100);
  EXPECT_EQ(steps(150, 1, 25), 50);
  EXPECT_EQ(steps(0, 1, 25), 100);
}

TEST(TrainerState, JsonComesBack) {
  TrainerState state;
  state.epoch = 3;
  state.seconds = 0.1;
  state.metrics_bytes = 1234567890123;
  EXPECT_EQ(trainer_state_from_json(to_json(state), "t"), state);
  EXPECT_THROW(trainer_state_from_json("{}", "t"), CheckpointError);
  EXPECT_THROW(trainer_state_from_json("", "t"), CheckpointError);
}

TEST(ClassifierCounts, EverySampleOnce) {
  testing::run_threads(3, [](Communicator& comm) {
    ClassifierCounts counts(3);
    if (comm.rank() != 1) {  // a rank may have none
      const auto scores = at::log_softmax(at::eye(3) * 10, 1);
      counts.add(scores, at::tensor({0, 1, comm.rank() == 0 ? 2 : 0}, at::kLong));
    }
    const Evaluation all = counts.reduce(comm);
    EXPECT_EQ(all.samples, 6);
    EXPECT_DOUBLE_EQ(all.accuracy, 5.0 / 6);
    EXPECT_EQ(all.confusion, (std::vector<std::vector<int64_t>>{{2, 0, 1}, {0, 2, 0}, {0, 0, 1}}));
    EXPECT_NEAR(all.loss, 10.0 / 6, 1e-3);
  });
}

// Whose state is what it has written so far.
class KeptRecorder final : public TrainCallback {
 public:
  void on_step(const TrainerState& state, const StepResult& result) override {
    add("step " + std::to_string(state.step) + " " + std::to_string(result.loss) + " " +
        std::to_string(state.samples));
  }
  void on_log(const TrainerState& state, const LogEvent& event) override {
    add("log " + std::to_string(state.step) + " " + std::to_string(event.loss));
  }
  void on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                     TrainControl&) override {
    add("evaluation " + std::to_string(state.step) + " " + std::to_string(evaluation.accuracy) +
        (best ? " best" : ""));
  }
  void on_epoch(const TrainerState& state, const EpochEvent& event) override {
    add("epoch " + std::to_string(state.epoch) + " " + std::to_string(event.loss));
  }
  void on_save(TrainerState& state, bool) override {
    add("save " + std::to_string(state.step) + " " + std::to_string(state.samples));
  }
  std::string state() const override { return lines; }
  void set_state(const std::string& state) override { lines = state; }
  std::string lines;

 private:
  void add(const std::string& line) { lines += line + "\n"; }
};

// A run that is shorter than log_every has a curve all the same; what is due is as without.
TEST(TrainLoop, TheFirstStepAndTheLastAreLoggedBesideWhatIsDue) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto logs = [&](const TrainLoopOptions& options, int64_t step, int64_t epoch) {
      int64_t taken = step;
      TrainTask task{.steps_per_epoch = 4,
                     .begin_epoch = [](int64_t, int64_t) {},
                     .step = [&]() -> StepResult {
                       return {.loss = static_cast<double>(++taken), .samples = 2};
                     },
                     .evaluate = {}};
      TrainLoop loop(comm, task, options);
      loop.state().step = step;
      loop.state().epoch = epoch;
      const auto recorder = std::make_shared<KeptRecorder>();
      loop.add(recorder);
      loop.run();
      std::string lines;
      std::istringstream all(recorder->lines);
      for (std::string line; std::getline(all, line);)
        if (line.starts_with("log")) lines += line + "\n";
      return lines;
    };
    EXPECT_EQ(logs({.epochs = 2, .log_every = 100}, 0, 0), "");
    EXPECT_EQ(logs({.epochs = 2, .log_every = 100, .log_ends = true}, 0, 0),
              "log 1 1.000000\nlog 8 4.500000\n");
    EXPECT_EQ(logs({.epochs = 2, .log_every = 3, .log_ends = true}, 0, 0),
              "log 1 1.000000\nlog 3 2.000000\nlog 6 5.000000\nlog 8 7.500000\n");
    EXPECT_EQ(logs({.epochs = 1, .log_every = 2, .log_ends = true}, 0, 0),
              "log 1 1.000000\nlog 2 1.500000\nlog 4 3.500000\n");
    EXPECT_EQ(logs({.epochs = 2, .log_every = 100, .log_ends = true}, 4, 1), "log 8 6.500000\n");
    EXPECT_EQ(logs({.epochs = 1, .log_every = 100, .log_ends = true}, 4, 1), "")
        << "it was finished";
  });
}

// A run that goes on at any of its steps, with other objects, does and says what one does that
// nothing happened to.
TEST(TrainLoop, GoesOnBetweenAStepsUpdateAndWhatFollowsIt) {
  constexpr int64_t kStepsPerEpoch = 5, kSteps = 12;
  const TrainLoopOptions options{
      .epochs = 3, .max_steps = kSteps, .log_every = 3, .save_every = 2, .evaluate_every = 4};
  const auto task = [](int rank, int64_t& step,
                       const std::function<void(const StepResult&)>& taken) {
    return TrainTask{
        .steps_per_epoch = kStepsPerEpoch,
        .begin_epoch = [&step](int64_t epoch,
                               int64_t first) { step = epoch * kStepsPerEpoch + first; },
        .step = [rank, &step, taken]() -> StepResult {
          ++step;
          const StepResult result{.loss = 1.0 / static_cast<double>(step + 7 * rank),
                                  .samples = step % 3 + rank};
          taken(result);
          return result;
        },
        .evaluate = [&step]() -> Evaluation {
          Evaluation evaluation;
          evaluation.accuracy = static_cast<double>(step * 5 % 7);
          return evaluation;
        }};
  };
  testing::run_threads(2, [&](Communicator& comm) {
    std::vector<std::string> points;
    std::string expected;
    {
      int64_t step = 0;
      TrainLoop* running = nullptr;
      TrainLoop loop(comm,
                     task(comm.rank(), step,
                          [&](const StepResult& result) {
                            points.push_back(to_bytes(running->point_after(result)));
                          }),
                     options);
      running = &loop;
      const auto recorder = std::make_shared<KeptRecorder>();
      loop.add(recorder);
      points.push_back(to_bytes(loop.point()));
      loop.run();
      expected = recorder->lines;
    }
    ASSERT_EQ(points.size(), static_cast<size_t>(kSteps + 1));
    for (const std::string& bytes : points) {
      int64_t step = 0;
      TrainLoop loop(comm, task(comm.rank(), step, [](const StepResult&) {}), options);
      const auto recorder = std::make_shared<KeptRecorder>();
      loop.add(recorder);
      const LoopPoint point = loop_point_from(bytes);
      EXPECT_EQ(to_bytes(point), bytes);
      step = point.state
                 .step;  // of a task that goes on by itself: the last step of an epoch begins none
      loop.go_on_at(point);
      loop.run();
      EXPECT_EQ(recorder->lines, expected) << "from step " << point.state.step;
    }
    TrainLoop other(comm,
                    TrainTask{.steps_per_epoch = 1,
                              .begin_epoch = [](int64_t, int64_t) {},
                              .step = [] { return StepResult{}; }},
                    {});
    EXPECT_THROW(other.go_on_at(loop_point_from(points[0])), DataError) << "another's callbacks";
  });
  EXPECT_THROW(loop_point_from("no point"), DataError);
}

// Where a rank is gone, the run goes on with its sums.
TEST(TrainLoop, SumsOfARankThatIsGoneAreTakenOver) {
  const auto point_of = [](double loss, int64_t samples, int64_t targets, const char* state) {
    LoopPoint point;
    point.loss = loss;
    point.samples = samples;
    point.targets = targets;
    point.callbacks = {state, ""};
    point.since_log.add(loss, samples);
    point.of_epoch.add(2 * loss, samples);
    point.uncounted = 10 * samples;
    return point;
  };
  LoopPoint point = point_of(1.5, 4, 8, "own");
  LoopPoint second = point_of(3, 12, 24, "2nd");
  inherit(second, point_of(0, 0, 0, "3rd"));  // it has inherited itself
  inherit(point, second);
  EXPECT_EQ(point.loss.value(), (1.5 * 8 + 3 * 24) / 32) << "a mean over targets";
  EXPECT_EQ(point.samples, 16);
  EXPECT_EQ(point.targets, 32);
  EXPECT_EQ(point.since_log.samples, 16);
  EXPECT_EQ(point.since_log.loss.value(), 1.5 * 4 + 3 * 12);
  EXPECT_EQ(point.of_epoch.loss.value(), 3 * 4 + 6 * 12);
  EXPECT_EQ(point.uncounted, 160);
  EXPECT_EQ(point.callbacks, (std::vector<std::string>{"own", ""}));
  EXPECT_EQ(point.inherited, (std::vector<std::vector<std::string>>{{"2nd", ""}, {"3rd", ""}}));
  EXPECT_EQ(loop_point_from(to_bytes(point)), point);

  // The callbacks of rank 0 get the states of their places.
  struct Kept : TrainCallback {
    std::string all;
    void set_state(const std::string& state) override { all = state; }
    void add_state(const std::string& state) override { all += "+" + state; }
  };
  testing::run_threads(1, [&](Communicator& comm) {
    TrainLoop loop(comm,
                   TrainTask{.steps_per_epoch = 1,
                             .begin_epoch = [](int64_t, int64_t) {},
                             .step = [] { return StepResult{}; }},
                   {});
    const auto kept = std::make_shared<Kept>();
    loop.add(kept);
    loop.add(nullptr);  // another rank's place
    loop.go_on_at(point);
    EXPECT_EQ(kept->all, "own+2nd+3rd");
    // One whose ranks had different callbacks is left out.
    point.inherited.push_back({"another's"});
    loop.go_on_at(point);
    EXPECT_EQ(kept->all, "own+2nd+3rd");
  });
}

}  // namespace lockstep::inline v0::train_loop_test
