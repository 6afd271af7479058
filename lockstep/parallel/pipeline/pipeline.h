// Pipeline: runs one stage of a model that is cut along its depth, a rank of `comm` a stage.
//
//   const auto schedule = make_schedule("zb-h1", {.stages = comm.size(), .micro_batches = 8});
//   LmChunks model(lm, cut_by_costs(costs, schedule.all_chunks()));
//   Pipeline pipeline(comm, schedule, model.chunks_of(schedule, comm.rank()));
//   const double loss = pipeline.step(batch);   // as loss.backward() of the whole batch would leave grad()
//   optimizer.step();
//
// - Any schedule that check_schedule() takes; actions run in its order, to the letter.
// - Gradients add up in grad() over the micro-batches, in the order in which the schedule runs them: a run
//   repeats bit for bit, and schedules that run a chunk's micro-batches in one order (all of
//   schedule_names() do) end in the same bits for the same cut. Not where one stage has both chunks of a tie:
//   a backward that computes both gradients adds them before it passes them on.
// - Receives are posted in the schedule's order, a few ahead; sends never hold up the computation, unless
//   PipelineDiscipline::most_sends says so.
// - W, the gradients of weights by themselves, is what a chunk makes of it (PipelineChunk::backward_weight).
//   A chunk without it computes all gradients in I, and W does nothing: the numbers are the same, and the
//   pipeline waits as under 1f1b. TransformerLm's fused layers have it.
// - Over a data axis beside the pipeline's, whoever reduces gradients on the CPU sees a step as one backward in which
//   each gradient arrives once a micro-batch, those of W too: a Reducer of this stage's parameters with
//   static_graph reduces each bucket when the last has come, ZeroOptimizer without overlap at its step (with
//   ties stage 1 alone, since the others take the gradients away); average_gradients() comes after step().
//   With ties every step is reduced: more micro-batches, not several steps (NoSync, accumulate()) for an update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/plan/pipeline_check.h"
#include "lockstep/plan/pipeline_plan.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep {

// Rows between two chunks: [rows of the micro-batch / parts, shape...]. Floating point.
struct PipelineRows {
  std::vector<int64_t> shape;  // behind dim 0
  at::ScalarType dtype = at::kFloat;
  int64_t parts =
      1;  // ranks that share the rows (LmSplit::divides_rows); divides those of each micro-batch
  bool operator==(const PipelineRows&) const = default;
};
// "float32 [rows, 128]", "float32 [rows / 2, 128]"
std::string to_string(const PipelineRows& rows);
// Of a micro-batch of so many rows. Throws InvalidArgument where the parts do not divide them.
std::vector<int64_t> sizes_of(const PipelineRows& rows, int64_t of_micro_batch);

struct MicroBatch {
  int index = 0;
  int64_t rows = 0;
  int64_t first_row = 0;  // in the batch of the step
  // backward_weight() will come: backward need not compute those gradients.
  bool defer_weights = false;
};

// A part of the model, of consecutive units. Its functions are called on the thread that calls step(),
// and may throw.
struct PipelineChunk {
  // Rows to rows; the model's first chunk takes what PipelineBatch::input gives, the last one's result goes
  // to PipelineBatch::loss. With gradients enabled in step(), without in evaluate().
  std::function<at::Tensor(const at::Tensor& rows, const MicroBatch& micro_batch)> forward;
  // Adds the gradients of weights that this micro-batch's backward has deferred to grad(). Null: it defers
  // none.
  std::function<void(const MicroBatch& micro_batch)> backward_weight = nullptr;
  // Declared, and compared among the ranks before the first step. Those of the model's ends are ignored.
  PipelineRows takes, gives;
  // What it is cut from and how, in words such as "a model of 6 units (1a2b3c4d) cut into 3, 3"; compared
  // among the ranks that say it.
  std::string origin = {};
};

// One parameter that two chunks use, such as an embedding that the head multiplies by: each has its own
// tensor, and they stay equal, since both get the sum of their gradients (the first chunk's plus the last
// one's). Where one stage has both chunks, one tensor is used twice.
struct PipelineTie {
  int first = 0, last = 0;  // chunks
  at::Tensor parameter;     // of this rank; undefined where it has neither chunk
};

struct PipelineOptions {
  PipelineDiscipline discipline = {};
  std::vector<PipelineTie> ties = {};  // the same list on all ranks
};

// What a step runs. Functions are asked for on the ranks that have the model's ends.
struct PipelineBatch {
  // Of each micro-batch, 1 or more; the same on all ranks. As many micro-batches as the schedule has, or
  // fewer, which leaves the last ones out.
  std::vector<int64_t> rows;
  // On the first chunk's rank: what that takes, dim 0 of so many rows.
  std::function<at::Tensor(const MicroBatch& micro_batch)> input = nullptr;
  // On the last chunk's rank: the micro-batch's part of the loss, a scalar; the step's loss is their sum.
  // For the mean over all rows: the micro-batch's mean times rows / all rows. Where some do not count (targets
  // of -100), those that do, / all that do, and 0 of the rows (rows.sum() * 0) where none does.
  std::function<at::Tensor(const at::Tensor& rows, const MicroBatch& micro_batch)> loss = nullptr;
};

// One thread, the communicator's. Keeps what it is given. The rows between stages are on the communicator's
// device, and so must chunks be.
class Pipeline {
 public:
  // `chunks`: this rank's, ascending, as schedule.chunks_of(comm.rank()) lists them. Tied parameters of the
  // last chunks get the first ones' values. Collective. Throws InvalidArgument before anything is sent: a
  // schedule that does not go with the communicator or the discipline, another number of chunks, a chunk
  // without forward, a tie that does not fit; Mismatch on all ranks alike that names two stages: other
  // schedules or numbers of micro-batches, other ties, chunks of other models or cuts, and of neighbouring
  // chunks rows that differ.
  Pipeline(Communicator comm, PipelineSchedule schedule, std::vector<PipelineChunk> chunks,
           PipelineOptions options = {});
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();

  // Forward and backward of all micro-batches -> the loss, the same on all ranks; gradients are added to
  // grad(). Collective. Throws InvalidArgument before anything is sent for a batch that makes no sense on
  // this rank; Mismatch on all ranks alike that names two stages whose numbers of micro-batches or rows
  // differ. What a function of a chunk throws, step() throws, and a chunk that gives other rows than it
  // declared, or elsewhere, is InvalidArgument: then the communicator is broken, so that the other stages' waits end with
  // PeerLost that says why, and gradients are unspecified. Timeout, PeerLost and Mismatch of the communicator
  // say which action of this stage awaited what from which.
  double step(const PipelineBatch& batch);
  // step() whose loss, float64 [1], stays on the communicator's device: the host does not wait for it.
  at::Tensor step_unread(const PipelineBatch& batch);
  // The forwards alone, in the schedule's order. Otherwise as step().
  double evaluate(const PipelineBatch& batch);

  const PipelineSchedule& schedule() const;
  // What the last step() or evaluate() of this rank has run, in order, each with when it began to compute and when
  // it had: seconds of the steady clock since the step began. What it waits for comes before, what it sends
  // behind.
  const std::vector<TimedAction>& executed() const;
  // The most activations, a chunk's of a micro-batch, that it held at once.
  int most_held() const;
  // The bytes of them, of the first step(): what forwards had left at once, with what came from other stages. 0 before.
  int64_t activation_bytes() const;
  // The next step() counts them anew, as if it were the first. Does not communicate.
  void count_activations();
  // Of all stages' last step(), on rank 0; nothing on the others. For pictures beside the plan
  // (report/pipeline_picture.h). Collective. Throws InvalidArgument before anything is sent where none was
  // run, or an evaluate() since.
  std::optional<MeasuredPipeline> measured();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
