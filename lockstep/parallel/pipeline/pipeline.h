// Pipeline: runs one stage of a model that is cut along its depth; each rank of `comm` is a stage.
//
//   const auto schedule = make_schedule("zb-h1", {.stages = comm.size(), .micro_batches = 8});
//   LmChunks model(lm, cut_by_costs(costs, schedule.all_chunks()));
//   Pipeline pipeline(comm, schedule, model.chunks_of(schedule, comm.rank()));
//   const double loss = pipeline.step(batch);  // grad() is as after loss.backward() of the batch
//   optimizer.step();
//
// - Any schedule that check_schedule() accepts; actions run exactly in its order.
// - Gradients add up in grad() over the micro-batches, in the schedule's order: a run repeats bit
//   for bit, and schedules that run a chunk's micro-batches in one order (all of schedule_names()
//   do) give the same bits for the same cut. This does not hold where one stage has both chunks of
//   a tie: a backward that computes both gradients adds them before it passes them on.
// - Receives are posted in the schedule's order, a few ahead; sends never delay the computation,
//   unless PipelineDiscipline::most_sends requires it.
// - W, the separate computation of weight gradients, is a chunk's own
//   (PipelineChunk::backward_weight). A chunk without it computes all gradients in I, and W does
//   nothing: the numbers are the same, and the pipeline waits as under 1f1b. TransformerLm's fused
//   layers support it.
// - With a data axis beside the pipeline's, code that reduces gradients on the CPU sees a step as
//   one backward in which each gradient arrives once per micro-batch, including those of W. A
//   Reducer of this stage's parameters with static_graph reduces each bucket when the last has
//   arrived; ZeroOptimizer without overlap does so at its step (with ties stage 1 only, since the
//   others remove the gradients); average_gradients() comes after step(). With ties every step is
//   reduced: use more micro-batches instead of several steps (NoSync, accumulate()) per update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/plan/pipeline_check.h"
#include "lockstep/plan/pipeline_plan.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0 {

// Rows between two chunks: [rows of the micro-batch / parts, shape...]. Floating point.
struct PipelineRows {
  std::vector<int64_t> shape;  // after dim 0
  at::ScalarType dtype = at::kFloat;
  // Ranks that share the rows (hooks::ModelPart); divides those of each micro-batch.
  int64_t parts = 1;
  bool operator==(const PipelineRows&) const = default;
};
// "float32 [rows, 128]", "float32 [rows / 2, 128]"
LOCKSTEP_API std::string to_string(const PipelineRows& rows);
// The sizes for a micro-batch of `of_micro_batch` rows.
// Throws: InvalidArgument where the parts do not divide them.
LOCKSTEP_API std::vector<int64_t> sizes_of(const PipelineRows& rows, int64_t of_micro_batch);

// Which part of a batch is computed.
struct MicroBatch {
  int index = 0;
  int64_t rows = 0;
  int64_t first_row = 0;  // in the batch of the step
  // backward_weight() will follow: backward need not compute those gradients.
  bool defer_weights = false;
};

// A part of the model, of consecutive units. Its functions are called on the thread that calls
// step(), and may throw.
struct PipelineChunk {
  // Maps rows to rows. The model's first chunk gets the result of PipelineBatch::input, and the
  // last one's result goes to PipelineBatch::loss. Runs with gradients enabled in step(), without
  // in evaluate().
  std::function<at::Tensor(const at::Tensor& rows, const MicroBatch& micro_batch)> forward;
  // Adds the weight gradients that this micro-batch's backward has deferred to grad(). Null: it
  // defers none.
  std::function<void(const MicroBatch& micro_batch)> backward_weight = nullptr;
  // Declared, and compared among the ranks before the first step. Those at the model's ends are
  // ignored.
  PipelineRows takes, gives;
  // Its origin in words, such as "a model of 6 units (1a2b3c4d) cut into 3, 3"; compared among the
  // ranks that set it.
  std::string origin = {};
};

// One parameter that two chunks use, such as an embedding that the head multiplies by. Each has its
// own tensor, and they stay equal, since both get the sum of their gradients (the first chunk's
// plus the last one's). Where one stage has both chunks, one tensor is used twice.
struct PipelineTie {
  int first = 0, last = 0;  // chunks
  at::Tensor parameter;     // this rank's; undefined where it has neither chunk
};

// The options of a Pipeline.
struct PipelineOptions {
  PipelineDiscipline discipline = {};  // how far messages run ahead
  std::vector<PipelineTie> ties = {};  // the same list on all ranks
};

// The input of a step. The functions are required on the ranks with the model's ends.
struct PipelineBatch {
  // The rows of each micro-batch, 1 or more; the same on all ranks. There are as many micro-batches
  // as the schedule has, or fewer, which leaves out the last ones.
  std::vector<int64_t> rows;
  // On the first chunk's rank: its input, with that many rows in dim 0.
  std::function<at::Tensor(const MicroBatch& micro_batch)> input = nullptr;
  // On the last chunk's rank: the micro-batch's part of the loss, a scalar; the step's loss is
  // their sum. For the mean over all rows, it is the micro-batch's mean times rows / all rows.
  // Where some rows do not count (targets of -100), use the counting ones / all counting ones, and
  // 0 times the rows (rows.sum() * 0) where none counts.
  std::function<at::Tensor(const at::Tensor& rows, const MicroBatch& micro_batch)> loss = nullptr;
};

// It keeps its arguments. The rows between stages are on the communicator's device, and so must
// chunks be.
// Thread-safety: the communicator's thread only.
class LOCKSTEP_API Pipeline {
 public:
  // `chunks`: this rank's, ascending, as schedule.chunks_of(comm.rank()) lists them. Tied
  // parameters of the last chunks get the first ones' values.
  // Collective: all ranks call it.
  // Throws: InvalidArgument before anything is sent for a schedule that does not fit the
  // communicator or the discipline, another number of chunks, a chunk without forward, or a tie
  // that does not fit; Mismatch on all ranks alike that names two stages with different schedules,
  // numbers of micro-batches, ties, models or cuts, or neighbouring chunks whose rows differ.
  Pipeline(Communicator comm, PipelineSchedule schedule, std::vector<PipelineChunk> chunks,
           PipelineOptions options = {});
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();

  // Runs forward and backward of all micro-batches. Returns the loss, the same on all ranks;
  // gradients are added to grad().
  // Collective: all ranks call it.
  // Throws: InvalidArgument before anything is sent for a batch that is invalid on this rank;
  // Mismatch on all ranks alike that names two stages whose numbers of micro-batches or rows
  // differ. An exception of a chunk's function is rethrown, and a chunk whose rows or device differ
  // from its declaration is InvalidArgument: then the communicator is broken, so that the other
  // stages' waits end with PeerLost that says why, and gradients are unspecified. Timeout, PeerLost
  // and Mismatch of the communicator name this stage's action and the message that it awaited.
  double step(const PipelineBatch& batch);
  // step() whose loss, float64 [1], stays on the communicator's device: the host does not wait for
  // it.
  at::Tensor step_unread(const PipelineBatch& batch);
  // Runs the forwards alone, in the schedule's order. Otherwise as step().
  double evaluate(const PipelineBatch& batch);

  const PipelineSchedule& schedule() const;  // the one that it runs
  // The actions of this rank's last step() or evaluate(), in order, each with the begin and end of
  // its computation, in seconds of the steady clock since the step began. Waiting precedes it, and
  // sending follows it.
  const std::vector<TimedAction>& executed() const;
  // The maximum number of activations, one per chunk and micro-batch, held at once.
  int most_held() const;
  // Their bytes in the first step(): the maximum that forwards kept at once, with rows from other
  // stages. 0 before.
  int64_t activation_bytes() const;
  // Makes the next step() count them anew. Does not communicate.
  void count_activations();
  // The last step() of all stages, on rank 0; nullopt on the others. For pictures beside the plan
  // (report/pipeline_picture.h).
  // Collective: all ranks call it.
  // Throws: InvalidArgument before anything is sent where no step was run, or an evaluate() since.
  std::optional<MeasuredPipeline> measured();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::inline v0
