// A stage of a pipeline of processes dies, stops, throws or is out of step: every other one gets
// the right error in time, which names the rank, its own stage and the action or the micro-batch.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::pipeline_mp_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

constexpr int kStages = 4, kFaulty = 1, kMicroBatches = 4;
constexpr int64_t kWidth = 6;
constexpr auto kTimeout = std::chrono::seconds(1);
constexpr Seconds kLimit{2};  // from the fault to the error, without the deadline

enum class Told { kPeerLost, kTimeout, kMismatch };

struct Fault {
  std::string name;
  Told told = Told::kPeerLost;
  // The rank's actions until it throws.
  std::function<void(Communicator&)> run;
  std::string names;     // a regular expression for the culprit in the others' message
  int end = 0;           // of the faulty rank, as in expect_lone_ranks()
  bool waits = false;    // for the deadline
  std::string own = {};  // in the faulty rank's message; empty: not checked
};

using Trick = std::function<void(const MicroBatch&)>;

// Rows times a number; on the faulty stage with faults in its forward and in its backward.
PipelineChunk chunk_with(int rank, const Trick& in_forward, const Trick& in_backward) {
  const at::Tensor weight = at::full({1}, 1.5).requires_grad_();
  PipelineChunk chunk;
  chunk.takes = chunk.gives = {{kWidth}, at::kFloat};
  chunk.forward = [=](const at::Tensor& x, const MicroBatch& mb) {
    if (rank == kFaulty && in_forward) in_forward(mb);
    at::Tensor y = x * weight;
    if (rank == kFaulty && in_backward && y.requires_grad())
      y.register_hook([in_backward, mb](const at::Tensor& gradient) {
        in_backward(mb);
        return gradient;
      });
    return y;
  };
  return chunk;
}

PipelineBatch batch_of(int micro_batches, int64_t rows = 3) {
  return {.rows = std::vector<int64_t>(static_cast<size_t>(micro_batches), rows),
          .input = [](const MicroBatch& mb) { return at::ones({mb.rows, kWidth}); },
          .loss = [](const at::Tensor& y, const MicroBatch&) { return y.sum(); }};
}

Pipeline made(Communicator& comm, PipelineChunk chunk, const char* schedule = "1f1b",
              int micro_batches = kMicroBatches) {
  return {comm, make_schedule(schedule, {kStages, micro_batches}), {std::move(chunk)}};
}

Trick at_micro_batch(int index, const std::function<void()>& what) {
  return [=](const MicroBatch& mb) {
    if (mb.index == index) what();
  };
}

std::function<void(Communicator&)> steps(const Trick& in_forward, const Trick& in_backward = {}) {
  return [=](Communicator& comm) {
    Pipeline pipeline = made(comm, chunk_with(comm.rank(), in_forward, in_backward));
    for (int step = 0; step < 3; ++step) pipeline.step(batch_of(kMicroBatches));
  };
}

void die() {
  ::kill(::getpid(), SIGKILL);
}
void stop() {
  ::raise(SIGSTOP);
}
void fail() {
  throw DataError("no such text");
}

LmConfig small_lm(int64_t layers) {
  LmConfig config;
  config.vocab_size = 30;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 2;
  return config;
}

void lm_pipeline(Communicator& comm, int64_t layers, const std::vector<int>& cut) {
  const PipelineSchedule schedule = make_schedule("1f1b", {kStages, kMicroBatches});
  const LmChunks chunks(TransformerLm(small_lm(layers)), cut);
  Pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()));
}

std::vector<Fault> killed_or_stopped() {
  const auto at_2 = [](const std::function<void()>& what) { return at_micro_batch(2, what); };
  return {
      {"KilledInAForward", Told::kPeerLost, steps(at_2(die)), "rank 1", SIGKILL},
      {"KilledInABackward", Told::kPeerLost, steps({}, at_2(die)), "rank 1", SIGKILL},
      {"KilledBetweenSteps", Told::kPeerLost,
       [](Communicator& comm) {
         Pipeline pipeline = made(comm, chunk_with(comm.rank(), {}, {}));
         pipeline.step(batch_of(kMicroBatches));
         if (comm.rank() == kFaulty) die();
         pipeline.step(batch_of(kMicroBatches));
       },
       "rank 1", SIGKILL},
      {"StoppedInAForward", Told::kTimeout, steps(at_2(stop)), "rank 1", SIGSTOP, true},
      {"StoppedInABackward", Told::kTimeout, steps({}, at_2(stop)), "rank 1", SIGSTOP, true},
      {"ThrowsInAForward", Told::kPeerLost, steps(at_2(fail)),
       "pipeline stage 1, F2 failed: no such text", 0, false, "^no such text"},
      {"ThrowsInABackward", Told::kPeerLost, steps({}, at_2(fail)),
       "pipeline stage 1, B2 failed: no such text", 0, false, "^no such text"},
      {"GivesAnotherShape", Told::kPeerLost,
       [](Communicator& comm) {
         PipelineChunk chunk = chunk_with(comm.rank(), {}, {});
         if (comm.rank() == kFaulty)
           chunk.forward = [](const at::Tensor& x, const MicroBatch& mb) {
             return mb.index == 2 ? x.narrow(1, 0, 3) : x * 1;
           };
         made(comm, chunk).step(batch_of(kMicroBatches));
       },
       "pipeline stage 1, F2 failed: pipeline: chunk 1 gives float32 .3, 3. for micro-batch 2", 0,
       false, "chunk 1 gives"},
  };
}

std::vector<Fault> out_of_step() {
  const auto other = [](Communicator& comm, int faulty, int all) {
    return comm.rank() == kFaulty ? faulty : all;
  };
  return {
      {"SkipsAMicroBatch", Told::kMismatch,
       [=](Communicator& comm) {
         made(comm, chunk_with(comm.rank(), {}, {}))
             .step(batch_of(other(comm, kMicroBatches - 1, kMicroBatches)));
       },
       "stage 1 has 3 micro-batches, stage 0 has 4 micro-batches", 0, false, "stage 1"},
      {"HasOtherRows", Told::kMismatch,
       [=](Communicator& comm) {
         made(comm, chunk_with(comm.rank(), {}, {}))
             .step(batch_of(kMicroBatches, other(comm, 4, 3)));
       },
       "stage 1 has 4 rows in micro-batch 0, stage 0 has 3 rows", 0, false, "stage 1"},
      {"RunsAnotherSchedule", Told::kMismatch,
       [](Communicator& comm) {
         made(comm, chunk_with(comm.rank(), {}, {}), comm.rank() == kFaulty ? "gpipe" : "1f1b");
       },
       "stage 1 runs gpipe with 4 micro-batches", 0, false, "stage 1"},
      {"LeavesAnActionOut", Told::kPeerLost,
       [](Communicator& comm) {
         PipelineSchedule schedule = make_schedule("1f1b", {kStages, kMicroBatches});
         if (comm.rank() == kFaulty) schedule.actions[kFaulty].pop_back();
         Pipeline(comm, schedule, {chunk_with(comm.rank(), {}, {})});
       },
       "rank 1", 0, false, "stage 1 does not run micro-batch 3"},
      {"TakesOtherRows", Told::kMismatch,
       [](Communicator& comm) {
         PipelineChunk chunk = chunk_with(comm.rank(), {}, {});
         if (comm.rank() == kFaulty) chunk.takes = {{7}, at::kFloat};
         made(comm, chunk);
       },
       "chunk 0 on stage 0 gives float32 .rows, 6., chunk 1 on stage 1 takes float32 .rows, 7.", 0,
       false, "stage 1"},
      {"CutsElsewhere", Told::kMismatch,
       [](Communicator& comm) {
         lm_pipeline(
             comm, 4,
             comm.rank() == kFaulty ? std::vector<int>{1, 2, 3, 1} : std::vector<int>{2, 2, 2, 1});
       },
       "stage 1 has chunks of a TransformerLm of 7 units .*cut into 1, 2, 3, 1, stage 0 of .*cut "
       "into 2, 2, 2, 1",
       0, false, "stage 1"},
      {"HasOtherUnits", Told::kMismatch,
       [](Communicator& comm) {
         lm_pipeline(
             comm, comm.rank() == kFaulty ? 5 : 4,
             comm.rank() == kFaulty ? std::vector<int>{2, 2, 2, 2} : std::vector<int>{2, 2, 2, 1});
       },
       "stage 1 has chunks of a TransformerLm of 8 units", 0, false, "stage 1"},
  };
}

std::vector<Fault> faults() {
  std::vector<Fault> all = killed_or_stopped();
  for (Fault& fault : out_of_step()) all.push_back(std::move(fault));
  return all;
}

struct Case {
  const char* backend;
  Fault fault;
  std::string name() const { return backend + fault.name; }
  friend std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name(); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* backend : {"shm", "tcp"})
    for (const Fault& fault : faults()) all.push_back({backend, fault});
  return all;
}

class PipelineFaults : public ::testing::TestWithParam<Case> {};

Told told_by(const Error& error) {
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return Told::kTimeout;
  return dynamic_cast<const Mismatch*>(&error) != nullptr ? Told::kMismatch : Told::kPeerLost;
}

void expect_survivor(const Fault& fault, int rank, const Error& error) {
  const std::string line = error.what();
  EXPECT_EQ(told_by(error), fault.told) << line;
  EXPECT_THAT(line, ContainsRegex(fault.names));
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  if (fault.told == Told::kMismatch) return;
  // Its own position: its stage, and the action, or the phase outside of all actions.
  EXPECT_THAT(line,
              ContainsRegex("^pipeline stage " + std::to_string(rank) +
                            "(, [FB][0-9]+ awaits the (rows|gradient) of micro-batch [0-9]+ "
                            "from stage [0-9]:|, before its first action:|, [FB][0-9]+:| waits "
                            "until stage [0-9] takes the (rows|gradient) of micro-batch [0-9]+:|, "
                            "behind its last action, awaits the loss:| compares its schedule)"));
}

TEST_P(PipelineFaults, EverySurvivorNamesRankStageAndAction) {
  const auto& [backend, fault] = GetParam();
  std::map<int, int> ends;
  if (fault.end != 0) ends[kFaulty] = fault.end;
  testing::expect_lone_ranks(
      kStages,
      [&backend, &fault] {
        std::optional<Communicator> comm = init({.backend = backend, .timeout = kTimeout});
        const int rank = comm->rank();
        const auto start = std::chrono::steady_clock::now();
        std::optional<std::string> found;
        try {
          fault.run(*comm);
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          found = error.what();
          if (rank == kFaulty)
            EXPECT_THAT(*found, ContainsRegex(fault.own));
          else
            expect_survivor(fault, rank, error);
        }
        const Seconds limit = kLimit + (fault.waits ? Seconds(kTimeout) : Seconds(0));
        EXPECT_LT(std::chrono::steady_clock::now() - start, limit) << found.value_or("");
      },
      ends);
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineFaults, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace lockstep::inline v0::pipeline_mp_test
