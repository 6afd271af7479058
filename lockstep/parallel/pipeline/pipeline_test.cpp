// Pipelines of a Sequential and of hand-made chunks: equal to one process, in the schedule's order,
// and the errors when stages do not match.
#include "lockstep/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/parallel/pipeline/sequential_chunks.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::pipeline_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 6;

// Eight layers with activations between them: 16 children, the same numbers every time.
torch::nn::Sequential made() {
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    torch::nn::Linear layer(kWidth, kWidth);
    model->push_back(layer);
    model->push_back(torch::nn::Tanh());
  }
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double at = 1;
  for (const at::Tensor& p : model->parameters()) {
    p.copy_(at::arange(p.numel(), at::kDouble).add_(at).sin_().mul_(0.6).view(p.sizes()));
    at += 17;
  }
  return model;
}

std::vector<PipelineRows> rows_between(int chunks) {
  return std::vector<PipelineRows>(static_cast<size_t>(chunks - 1), {{kWidth}, at::kDouble});
}

std::vector<int> even_cut(int chunks) {
  return cut_by_costs(std::vector<double>(16, 1.0), chunks);
}

// Micro-batches of unequal size.
std::vector<int64_t> some_rows(int count) {
  std::vector<int64_t> rows;
  for (int i = 0; i < count; ++i) rows.push_back(1 + (i * 5) % 4);
  return rows;
}
int64_t sum_of(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}
at::Tensor batch_of(int64_t rows, double shift = 0) {
  return at::arange(rows * kWidth, at::kDouble).mul_(0.37).add_(shift).cos_().view({rows, kWidth});
}
at::Tensor loss_of(const at::Tensor& out, int64_t first, int64_t all) {
  const at::Tensor targets = at::arange(out.numel(), at::kDouble)
                                 .add_(static_cast<double>(first * kWidth))
                                 .sin_()
                                 .view(out.sizes());
  return (out - targets).square().sum() / static_cast<double>(all);
}

PipelineBatch batch_for(const std::vector<int64_t>& rows, double shift = 0) {
  const int64_t all = sum_of(rows);
  const at::Tensor x = batch_of(all, shift);
  return {.rows = rows,
          .input = [x](const MicroBatch& mb) { return x.narrow(0, mb.first_row, mb.rows); },
          .loss = [all](const at::Tensor& out,
                        const MicroBatch& mb) { return loss_of(out, mb.first_row, all); }};
}

struct Result {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

Result of_one_process(const std::vector<int64_t>& rows, double shift = 0) {
  at::set_num_threads(1);
  torch::nn::Sequential model = made();
  const int64_t all = sum_of(rows);
  const at::Tensor loss = loss_of(model->forward(batch_of(all, shift)), 0, all);
  loss.backward();
  Result result{loss.item<double>(), {}};
  for (const at::Tensor& p : model->parameters()) result.gradients.push_back(p.grad().clone());
  return result;
}

struct Job {
  std::string schedule;
  PipelineSize size;
};
std::string shown(const Job& job) {
  return job.schedule + " p " + std::to_string(job.size.stages) + " m " +
         std::to_string(job.size.micro_batches) + " v " + std::to_string(job.size.chunks);
}
std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (int p = 1; p <= 4; ++p) {
    for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
      jobs.push_back({name, {p, 2 * p + 1, 1}});
      jobs.push_back({name, {p, 2, 1}});
    }
    jobs.push_back({"interleaved", {p, 2 * p, 2}});
    jobs.push_back({"interleaved", {p, p, 3}});
    jobs.push_back({"zb-v", {p, 2 * p + 1, 2}});
    jobs.push_back({"zb-v", {p, 2, 2}});
  }
  return jobs;
}

std::vector<PipelineAction> actions_of(const std::vector<TimedAction>& executed) {
  std::vector<PipelineAction> actions;
  for (const TimedAction& timed : executed) actions.push_back(timed.action);
  return actions;
}

// Runs steps on threads; returns the gradients of all stages together.
Result run(const Job& job, const std::vector<int64_t>& rows, PipelineOptions options = {},
           testing::ThreadOptions threads = {}) {
  Result result;
  std::vector<at::Tensor> gradients(16);
  testing::run_threads(
      job.size.stages,
      [&](Communicator& comm) {
        torch::nn::Sequential model = made();
        const PipelineSchedule schedule = make_schedule(job.schedule, job.size);
        const int chunks = schedule.all_chunks();
        Pipeline pipeline(
            comm, schedule,
            sequential_chunks(model, even_cut(chunks), rows_between(chunks), schedule, comm.rank()),
            options);
        const PipelineBatch batch = batch_for(rows);
        const double seen = pipeline.evaluate(batch);
        const double loss = pipeline.step(batch);
        EXPECT_DOUBLE_EQ(seen, loss) << shown(job);
        // Compares event by event, leaving out missing ones.
        std::vector<PipelineAction> expected = schedule.actions[static_cast<size_t>(comm.rank())];
        std::erase_if(expected, [&](const PipelineAction& action) {
          return action.micro_batch >= static_cast<int>(rows.size());
        });
        EXPECT_EQ(actions_of(pipeline.executed()), expected) << shown(job);
        if (static_cast<int>(rows.size()) == job.size.micro_batches) {
          EXPECT_EQ(pipeline.most_held(),
                    peak_activations(schedule)[static_cast<size_t>(comm.rank())]);
        }
        size_t at = 0;
        for (const at::Tensor& p : model->parameters()) {
          if (p.grad().defined()) gradients[at] = p.grad();
          ++at;
        }
        const at::Tensor all = comm.all_gather(at::full({1}, loss, at::kDouble));
        EXPECT_TRUE(all.eq(loss).all().item<bool>()) << "all ranks know the loss";
        if (comm.rank() == 0) result.loss = loss;
      },
      threads);
  result.gradients = gradients;
  return result;
}

void expect_near(const Result& a, const Result& b, const std::string& what) {
  EXPECT_NEAR(a.loss, b.loss, 1e-10) << what;
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    ASSERT_TRUE(a.gradients[i].defined()) << what << " " << i;
    EXPECT_LT((a.gradients[i] - b.gradients[i]).abs().max().item<double>(), 1e-10)
        << what << " " << i;
  }
}
void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  for (size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_TRUE(a.gradients[i].equal(b.gradients[i])) << what << " " << i;
}

TEST(Pipeline, EqualsOneProcess) {
  for (const Job& job : jobs()) {
    const std::vector<int64_t> rows = some_rows(job.size.micro_batches);
    const Result whole = of_one_process(rows);
    EXPECT_GT(whole.gradients[0].abs().max().item<double>(), 1e-4);
    expect_near(run(job, rows), whole, shown(job));
  }
}

TEST(Pipeline, FewerMicroBatchesThanTheScheduleHas) {
  for (const Job& job : jobs()) {
    const std::vector<int64_t> rows = some_rows(std::max(1, job.size.micro_batches - 2));
    expect_near(run(job, rows), of_one_process(rows), shown(job));
  }
}

TEST(Pipeline, SchedulesAndRunsEndInTheSameBits) {
  for (int p = 1; p <= 4; ++p) {
    const std::vector<int64_t> rows = some_rows(2 * p);
    const Job plain{"1f1b", {p, 2 * p, 1}};
    const Result first = run(plain, rows);
    expect_same(run(plain, rows), first, "again");
    expect_same(run({"gpipe", {p, 2 * p, 1}}, rows), first, "gpipe");
    expect_same(run({"zb-h1", {p, 2 * p, 1}}, rows), first, "zb-h1");
  }
}

TEST(Pipeline, AnyDisciplineThatIsCheckedRuns) {
  const Job job{"1f1b", {3, 7, 1}}, there_and_back{"zb-v", {3, 7, 2}};
  const std::vector<int64_t> rows = some_rows(7);
  const Result whole = of_one_process(rows);
  for (const int ahead : {0, 2, 50}) {
    for (const int sends : {0, 1, 3})
      expect_near(run(job, rows, {.discipline = {ahead, sends}}), whole, "1f1b");
    expect_near(run(there_and_back, rows, {.discipline = {ahead, 6}}), whole, "zb-v");
  }
}

// As between processes: a message has no room until its receive is posted, and is sent in several
// rounds.
TEST(Pipeline, MessagesLargerThanTheEnginesRoom) {
  for (const Job& job : jobs()) {
    if (job.size.stages < 3) continue;
    std::vector<int64_t> rows = some_rows(job.size.micro_batches);
    for (int64_t& count : rows) count *= 40;
    const Result whole = of_one_process(rows);
    for (const int ahead : {0, 1})
      expect_near(run(job, rows, {.discipline = {ahead, 0}}, {.slot_bytes = 1024}), whole,
                  shown(job));
  }
}

TEST(Pipeline, GradientsAddUpOverSteps) {
  torch::nn::Sequential whole = made();
  for (const double shift : {0.0, 0.5})
    loss_of(whole->forward(batch_of(9, shift)), 0, 9).backward();
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Sequential model = made();
    const PipelineSchedule schedule = make_schedule("zb-v", {.stages = 2, .micro_batches = 3});
    Pipeline pipeline(
        comm, schedule,
        sequential_chunks(model, even_cut(4), rows_between(4), schedule, comm.rank()));
    for (const double shift : {0.0, 0.5}) pipeline.step(batch_for({2, 4, 3}, shift));
    int found = 0;
    for (size_t i = 0; i < 16; ++i) {
      const at::Tensor mine = model->parameters()[i].grad();
      if (!mine.defined()) continue;
      ++found;
      EXPECT_TRUE(at::allclose(mine, whole->parameters()[i].grad(), 1e-10, 1e-12)) << i;
    }
    EXPECT_EQ(found, 8);
  });
}

// Planned and executed events are the same: the measurement follows the schedule, no stage does two
// things at once, and nothing begins before the data that it waits for was sent.
TEST(Pipeline, WhatIsMeasuredIsTheSchedule) {
  for (const Job& job : jobs()) {
    testing::run_threads(job.size.stages, [&](Communicator& comm) {
      torch::nn::Sequential model = made();
      const PipelineSchedule schedule = make_schedule(job.schedule, job.size);
      const int chunks = schedule.all_chunks();
      Pipeline pipeline(
          comm, schedule,
          sequential_chunks(model, even_cut(chunks), rows_between(chunks), schedule, comm.rank()));
      EXPECT_THAT(message_of<InvalidArgument>([&] { pipeline.measured(); }),
                  HasSubstr("nothing is measured yet"));
      pipeline.step(batch_for(some_rows(job.size.micro_batches)));
      const auto measured = pipeline.measured();
      ASSERT_EQ(measured.has_value(), comm.rank() == 0);
      if (measured) {
        EXPECT_EQ(measured->most_held, peak_activations(schedule)) << shown(job);
        EXPECT_GT(measured->timing.makespan, 0);
        EXPECT_GE(measured->timing.bubble, -1e-9);
        std::map<std::tuple<int, int, int>, double> sent;
        for (size_t stage = 0; stage < schedule.actions.size(); ++stage) {
          const auto& ran = measured->timing.actions[stage];
          EXPECT_EQ(actions_of(ran), schedule.actions[stage]) << shown(job);
          EXPECT_EQ(actions_of(measured->planned.timing.actions[stage]), schedule.actions[stage]);
          for (size_t i = 1; i < ran.size(); ++i) EXPECT_GE(ran[i].start, ran[i - 1].end);
          for (const TimedAction& timed : ran)
            if (const auto message = sent_by(schedule, timed.action))
              sent[{message->from, message->to, message->micro_batch}] = timed.end;
        }
        for (const auto& ran : measured->timing.actions) {
          for (const TimedAction& timed : ran) {
            const auto message = received_by(schedule, timed.action);
            if (!message) continue;
            EXPECT_GE(timed.start - sent.at({message->from, message->to, message->micro_batch}),
                      -1e-9)
                << shown(job);
          }
        }
      }
      pipeline.evaluate(batch_for(some_rows(job.size.micro_batches)));
      EXPECT_THAT(message_of<InvalidArgument>([&] { pipeline.measured(); }),
                  HasSubstr("run a step()"));
    });
  }
}

// Two pipelines side by side, each with half of the data.
TEST(Pipeline, BesideADataAxis) {
  const std::vector<int64_t> rows{3, 1, 2, 2};
  const auto gradients = [&](const char* name) {
    std::vector<at::Tensor> result(16);
    testing::run_threads(4, [&](Communicator& comm) {
      Mesh mesh(comm, {{"data", 2}, {"pipe", 2}});
      torch::nn::Sequential model = made();
      const PipelineSchedule schedule = make_schedule(name, {.stages = 2, .micro_batches = 4});
      Pipeline pipeline(
          mesh["pipe"], schedule,
          sequential_chunks(model, even_cut(2), rows_between(2), schedule, mesh.place("pipe")));
      pipeline.step(batch_for(rows, mesh.place("data")));
      average_gradients(model, mesh["data"]);
      for (size_t i = 0; i < 16; ++i) {
        const at::Tensor mine = model->parameters()[i].grad();
        if (mine.defined() && mesh.place("data") == 0) result[i] = mine;
      }
    });
    return result;
  };
  const auto plain = gradients("1f1b"), zero_bubble = gradients("zb-h1");
  const Result first = of_one_process(rows, 0), second = of_one_process(rows, 1);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(plain[i].equal(zero_bubble[i])) << i;
    const at::Tensor mean = (first.gradients[i] + second.gradients[i]) / 2;
    EXPECT_LT((plain[i] - mean).abs().max().item<double>(), 1e-10) << i;
  }
}

TEST(Pipeline, FrozenStagesPassWhatTheyMust) {
  testing::run_threads(3, [&](Communicator& comm) {
    torch::nn::Sequential model = made(), whole = made();
    for (const auto& m : {model, whole})
      for (size_t i = 0; i < 16; ++i)
        if (i < 6 || i == 10) m->parameters()[i].requires_grad_(false);
    loss_of(whole->forward(batch_of(6)), 0, 6).backward();
    const PipelineSchedule schedule = make_schedule("1f1b", {.stages = 3, .micro_batches = 3});
    Pipeline pipeline(comm, schedule,
                      sequential_chunks(model, {6, 5, 5}, rows_between(3), schedule, comm.rank()));
    pipeline.step(batch_for({2, 2, 2}));
    for (size_t i = 0; i < 16; ++i) {
      const at::Tensor mine = model->parameters()[i].grad();
      if (!mine.defined()) continue;
      EXPECT_TRUE(at::allclose(mine, whole->parameters()[i].grad(), 1e-10, 1e-12)) << i;
    }
    if (comm.rank() == 0) {
      EXPECT_FALSE(model->parameters()[0].grad().defined());
    } else {
      EXPECT_TRUE(model->parameters()[comm.rank() == 1 ? 8 : 15].grad().defined());
    }
  });
}

// ---- what does not fit ----

PipelineChunk identity(PipelineRows takes, PipelineRows gives) {
  return {.forward = [](const at::Tensor& x, const MicroBatch&) { return x * 1; },
          .takes = std::move(takes),
          .gives = std::move(gives)};
}
const PipelineRows kRows{{kWidth}, at::kDouble};

// The error of each rank.
template <typename E>
std::vector<std::string> told(int ranks, const std::function<void(Communicator&)>& fn) {
  std::vector<std::string> lines(static_cast<size_t>(ranks));
  testing::run_threads(ranks, [&](Communicator& comm) {
    lines[static_cast<size_t>(comm.rank())] = message_of<E>([&] { fn(comm); });
  });
  for (const std::string& line : lines) EXPECT_EQ(line.find('\n'), std::string::npos);
  return lines;
}

TEST(Pipeline, StagesThatDifferAreNamedBeforeAnythingIsSent) {
  const auto expect_all = [](const std::vector<std::string>& lines, const std::string& line) {
    for (const std::string& one : lines) EXPECT_EQ(one, line);
  };
  expect_all(told<Mismatch>(3,
                            [](Communicator& comm) {
                              const int count = comm.rank() == 1 ? 6 : 8;
                              Pipeline(comm, make_schedule("1f1b", {3, count}),
                                       {identity(kRows, kRows)});
                            }),
             "pipeline: stage 1 runs 1f1b with 6 micro-batches and 1 chunks a stage, stage 0 runs "
             "1f1b with 8 micro-batches and 1 chunks a stage; every rank must make the same "
             "schedule");
  expect_all(told<Mismatch>(3,
                            [](Communicator& comm) {
                              const PipelineRows other{{comm.rank() == 2 ? 7 : 6}, at::kFloat};
                              Pipeline(comm, make_schedule("zb-h1", {3, 4}),
                                       {identity(other, other)});
                            }),
             "pipeline: chunk 1 on stage 1 gives float32 [rows, 6], chunk 2 on stage 2 takes "
             "float32 [rows, 7]; neighbours must declare the same rows");
  expect_all(
      told<Mismatch>(2,
                     [](Communicator& comm) {
                       const PipelineRows other{{6}, comm.rank() == 0 ? at::kFloat : at::kDouble};
                       Pipeline(comm, make_schedule("1f1b", {2, 4}), {identity(other, other)});
                     }),
      "pipeline: chunk 0 on stage 0 gives float32 [rows, 6], chunk 1 on stage 1 takes "
      "float64 [rows, 6]; neighbours must declare the same rows");
  for (const std::string& line : told<Mismatch>(2, [](Communicator& comm) {
         PipelineSchedule schedule = make_schedule("gpipe", {2, 2});
         auto& last = schedule.actions[1];
         if (comm.rank() == 1) std::swap(last[1], last[2]);
         Pipeline(comm, schedule, {identity(kRows, kRows)});
       }))
    EXPECT_THAT(line, HasSubstr("stage 1 has other actions in its gpipe with 2 micro-batches"));
}

TEST(Pipeline, BatchesThatDifferAreNamedBeforeAnythingIsSent) {
  const auto step = [](const std::function<std::vector<int64_t>(int)>& rows,
                       bool evaluate_one = false) {
    return told<Mismatch>(3, [&](Communicator& comm) {
      Pipeline pipeline(comm, make_schedule("1f1b", {3, 4}), {identity(kRows, kRows)});
      const PipelineBatch batch = batch_for(rows(comm.rank()));
      if (evaluate_one && comm.rank() == 1)
        pipeline.evaluate(batch);
      else
        pipeline.step(batch);
    });
  };
  for (const std::string& line :
       step([](int rank) { return std::vector<int64_t>(rank == 2 ? 3 : 4, 2); }))
    EXPECT_EQ(line,
              "pipeline: stage 2 has 3 micro-batches, stage 0 has 4 micro-batches; every rank must "
              "call the same with the same rows");
  for (const std::string& line :
       step([](int rank) { return std::vector<int64_t>{2, rank == 1 ? 5 : 4, 1}; }))
    EXPECT_THAT(line, HasSubstr("stage 1 has 5 rows in micro-batch 1, stage 0 has 4 rows"));
  for (const std::string& line : step([](int) { return std::vector<int64_t>{2, 2}; }, true))
    EXPECT_THAT(line, HasSubstr("stage 1 called evaluate, stage 0 called step"));
}

TEST(Pipeline, MistakesAreOneLine) {
  testing::run_threads(1, [](Communicator& comm) {
    const auto of = [&](const PipelineSchedule& schedule, std::vector<PipelineChunk> chunks,
                        PipelineOptions options = {}) {
      return message_of<InvalidArgument>(
          [&] { Pipeline(comm, schedule, std::move(chunks), std::move(options)); });
    };
    const PipelineSchedule one = make_schedule("1f1b", {1, 2});
    const PipelineChunk chunk = identity(kRows, kRows);
    EXPECT_EQ(of(make_schedule("1f1b", {2, 2}), {chunk}),
              "pipeline: a schedule of 2 stages on 1 ranks; make it for as many stages");
    EXPECT_THAT(of(one, {chunk, chunk}), HasSubstr("2 chunks given; the schedule has 1 a stage"));
    EXPECT_THAT(of(one, {PipelineChunk{}}), HasSubstr("chunk 0 has no forward"));
    EXPECT_THAT(of(one, {chunk}, {.ties = {{0, 0, {}}}}), HasSubstr("give two of 1 chunks"));
    const auto there_and_back = make_schedule("zb-v", {1, 2});
    EXPECT_THAT(of(there_and_back, {chunk, chunk}, {.ties = {{0, 1, {}}}}),
                HasSubstr("needs this stage's parameter"));
    EXPECT_THAT(of(there_and_back, {chunk, identity({{6}, at::kLong}, kRows)}),
                HasSubstr("chunk 1 takes rows that have no gradient"));
    PipelineSchedule bad = one;
    bad.actions[0].pop_back();
    EXPECT_THAT(of(bad, {chunk}), HasSubstr("does not run micro-batch 1"));

    Pipeline pipeline(comm, one, {chunk});
    const auto step = [&](PipelineBatch batch) {
      return message_of<InvalidArgument>([&] { pipeline.step(batch); });
    };
    EXPECT_EQ(step(batch_for({1, 2, 3})),
              "pipeline stage 0: 3 micro-batches; give 1 to 2, as the schedule has");
    EXPECT_THAT(step(batch_for({1, 0})), HasSubstr("micro-batch 1 has 0 rows"));
    EXPECT_THAT(step({.rows = {1}, .loss = batch_for({1}).loss}),
                HasSubstr("PipelineBatch::input"));
    EXPECT_THAT(step({.rows = {1}, .input = batch_for({1}).input}),
                HasSubstr("PipelineBatch::loss"));
  });
}

// A stage that fails ends the others' waits, and reports the reason.
TEST(Pipeline, AStageThatFailsEndsTheStep) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> lines = told<Error>(3, [](Communicator& comm) {
    PipelineChunk chunk = identity(kRows, kRows);
    if (comm.rank() == 1)
      chunk.forward = [](const at::Tensor& x, const MicroBatch& mb) {
        return mb.index == 2 ? x.narrow(1, 0, 3) : x * 1;
      };
    Pipeline pipeline(comm, make_schedule("1f1b", {3, 4}), {chunk});
    pipeline.step(batch_for({2, 2, 2, 2}));
  });
  EXPECT_EQ(lines[1],
            "pipeline: chunk 1 gives float64 [2, 3] for micro-batch 2 of 2 rows, but declares "
            "float64 [rows, 6]");
  for (const size_t rank : {0, 2})
    EXPECT_THAT(lines[rank], HasSubstr("pipeline stage 1, F2 failed: pipeline: chunk 1 gives"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// For example the exception of a Reducer on a data axis whose peer has ended: this pipeline's
// communicator is intact.
TEST(Pipeline, WhatAnotherCommunicatorThrowsEndsTheStep) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> lines = told<Error>(3, [](Communicator& comm) {
    PipelineChunk chunk = identity(kRows, kRows);
    if (comm.rank() == 1)
      chunk.forward = [](const at::Tensor&, const MicroBatch&) -> at::Tensor {
        throw PeerLost("rank 1 of the data axis is gone", 1);
      };
    Pipeline pipeline(comm, make_schedule("1f1b", {3, 4}), {chunk});
    pipeline.step(batch_for({2, 2, 2, 2}));
  });
  EXPECT_THAT(lines[1], HasSubstr("of the data axis is gone"));
  for (const size_t rank : {0, 2})
    EXPECT_THAT(lines[rank], HasSubstr("pipeline stage 1, F0 failed: rank 1 of the data axis"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Pipeline, DisciplinesAreCompared) {
  for (const std::string& line : told<Mismatch>(2, [](Communicator& comm) {
         Pipeline(comm, make_schedule("1f1b", {2, 2}), {identity(kRows, kRows)},
                  {.discipline = {.receives_ahead = 1 + comm.rank()}});
       }))
    EXPECT_EQ(line,
              "pipeline: stage 1 allows 2 receives ahead and any number of sends, stage 0 allows 1 "
              "receives ahead and any number of sends; every rank must give the same "
              "PipelineDiscipline");
}

TEST(Pipeline, TiedParametersAreCompared) {
  const auto lines_with = [](bool frozen, int64_t width) {
    return told<Mismatch>(2, [&](Communicator& comm) {
      const bool last = comm.rank() == 1;
      const at::Tensor parameter = torch::zeros({last ? width : 3, 2}, at::kDouble);
      parameter.requires_grad_(!(last && frozen));
      Pipeline(comm, make_schedule("1f1b", {2, 2}), {identity(kRows, kRows)},
               {.ties = {{0, 1, parameter}}});
    });
  };
  for (const std::string& line : lines_with(true, 3))
    EXPECT_THAT(line, HasSubstr("of the tie of chunks 0 and 1 stage 1 has float64 [3, 2], frozen, "
                                "stage 0 float64 [3, 2]"));
  for (const std::string& line : lines_with(false, 4))
    EXPECT_THAT(line, HasSubstr("stage 1 has float64 [4, 2], stage 0 float64 [3, 2]"));
}

// Backward runs in the same way as one outside of autocast.
TEST(Pipeline, AutocastIsForForwardsAlone) {
  testing::run_threads(2, [](Communicator& comm) {
    at::ScalarType seen = at::kDouble;
    PipelineChunk chunk = identity(kRows, kRows);
    if (comm.rank() == 1)
      chunk.forward = [&](const at::Tensor& x, const MicroBatch&) {
        x.register_hook([&](const at::Tensor& gradient) {
          const at::Tensor a = torch::ones({2, 2});
          seen = at::mm(a, a).scalar_type();
          return gradient;
        });
        return x * 1;
      };
    Pipeline pipeline(comm, make_schedule("1f1b", {2, 1}), {chunk});
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    pipeline.step(batch_for({2}));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(seen, comm.rank() == 1 ? at::kFloat : at::kDouble);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::pipeline_test
