#include "lockstep/parallel/pipeline/pipeline.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <map>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/flat/backward_watch.h"
#include "lockstep/hooks/autograd_node.h"
#include "lockstep/parallel/pipeline/internal/agreement.h"
#include "lockstep/parallel/pipeline/internal/measured.h"
#include "lockstep/parallel/pipeline/internal/place.h"
#include "lockstep/parallel/pipeline/internal/step.h"
#include "lockstep/parallel/pipeline/internal/ties.h"

namespace lockstep::inline v0 {
namespace {

std::string stage_text(const Communicator& comm) {
  return "pipeline stage " + std::to_string(comm.rank());
}

PipelineSchedule checked(const Communicator& comm, PipelineSchedule schedule,
                         const PipelineDiscipline& discipline) {
  if (schedule.stages != comm.size())
    throw InvalidArgument("pipeline: a schedule of " + std::to_string(schedule.stages) +
                          " stages on " + std::to_string(comm.size()) +
                          " ranks; make it for as many stages");
  check_schedule(schedule, discipline);
  return schedule;
}

std::map<int, PipelineChunk> numbered(const Communicator& comm, const PipelineSchedule& schedule,
                                      std::vector<PipelineChunk> chunks) {
  const std::vector<int> own = schedule.chunks_of(comm.rank());
  if (chunks.size() != own.size())
    throw InvalidArgument(stage_text(comm) + ": " + std::to_string(chunks.size()) +
                          " chunks given; the schedule has " + std::to_string(own.size()) +
                          " a stage");
  std::map<int, PipelineChunk> result;
  for (size_t i = 0; i < own.size(); ++i) {
    const bool has_rows = own[i] == 0 || at::isFloatingType(chunks[i].takes.dtype);
    if (!chunks[i].forward || !has_rows)
      throw InvalidArgument(stage_text(comm) + ": chunk " + std::to_string(own[i]) +
                            (has_rows ? " has no forward" : " takes rows that have no gradient"));
    result[own[i]] = std::move(chunks[i]);
  }
  return result;
}

void check_batch(const Communicator& comm, const PipelineSchedule& schedule,
                 const std::map<int, PipelineChunk>& chunks, const PipelineBatch& batch) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(stage_text(comm) + ": " + what);
  };
  const auto count = static_cast<int>(batch.rows.size());
  if (count < 1 || count > schedule.micro_batches)
    refuse(std::to_string(count) + " micro-batches; give 1 to " +
           std::to_string(schedule.micro_batches) + ", as the schedule has");
  for (int i = 0; i < count; ++i) {
    if (batch.rows[static_cast<size_t>(i)] < 1)
      refuse("micro-batch " + std::to_string(i) + " has " +
             std::to_string(batch.rows[static_cast<size_t>(i)]) + " rows; give at least 1");
    for (const auto& [number, chunk] : chunks) {
      if (number > 0) sizes_of(chunk.takes, batch.rows[static_cast<size_t>(i)]);
      if (number + 1 < schedule.all_chunks())
        sizes_of(chunk.gives, batch.rows[static_cast<size_t>(i)]);
    }
  }
  if (schedule.stage_of.front() == comm.rank() && !batch.input)
    refuse("it has the model's first chunk; give PipelineBatch::input");
  if (schedule.stage_of.back() == comm.rank() && !batch.loss)
    refuse("it has the model's last chunk; give PipelineBatch::loss");
}

// A node whose backward is a stage's step.
class StepNode final : public torch::autograd::Node {
 public:
  StepNode(std::function<void()> run, const at::Tensor& seed) : run_(std::move(run)) {
    add_input_metadata(seed);
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    const flat::OuterBackward outer;
    std::exchange(run_, nullptr)();
    return {};
  }

  std::function<void()> run_;
};

// Runs it as one backward, for code that awaits gradients: it begins with the first micro-batch's
// first, ends when `run` does, and each gradient arrives in it once per micro-batch.
void as_one_backward(std::function<void()> run) {
  const at::Tensor seed = at::zeros({}, at::kFloat);
  const auto node = hooks::make_node<StepNode>(std::move(run), seed);
  torch::autograd::Engine::get_default_engine().execute(
      {torch::autograd::Edge(node, 0)}, {seed}, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/true);
}

}  // namespace

struct Pipeline::State {
  State(Communicator given, PipelineSchedule schedule, std::vector<PipelineChunk> chunks,
        PipelineOptions options)
      : comm(std::move(given)),
        discipline(options.discipline),
        schedule(checked(comm, std::move(schedule), options.discipline)),
        chunks(numbered(comm, this->schedule, std::move(chunks))),
        ties(this->schedule, comm.rank(), std::move(options.ties)) {}

  // Returns the loss, float64 [1] on the communicator's device.
  at::Tensor run(const PipelineBatch& batch, bool backward);

  Communicator comm;
  PipelineDiscipline discipline;
  PipelineSchedule schedule;
  std::map<int, PipelineChunk> chunks;
  internal::Ties ties;
  std::vector<TimedAction> executed;
  int most_held = 0;
  std::optional<int64_t> activation_bytes;  // of the first step
  bool has_step = false;                    // `executed` belongs to a step
};

at::Tensor Pipeline::State::run(const PipelineBatch& batch, bool backward) {
  check_batch(comm, schedule, chunks, batch);
  internal::agree_on_step(comm, schedule, backward, batch.rows);
  executed.clear();
  most_held = 0;
  has_step = false;
  const bool counts = backward && !activation_bytes;
  internal::PipelineStep step(comm, schedule, chunks, discipline, batch, backward, counts);
  try {
    at::Tensor loss;
    if (backward) {
      ties.begin();
      as_one_backward([&] { loss = step.run(); });
      ties.end(comm);
    } else {
      loss = step.run();
    }
    internal::at_place(
        [&] { return stage_text(comm) + ", behind its last action, awaits the loss"; },
        [&] { comm.broadcast(loss, schedule.stage_of.back()); });
    executed = step.executed();
    most_held = step.most_held();
    if (counts) activation_bytes = step.most_bytes();
    has_step = backward;
    return loss;
  } catch (const std::exception& error) {
    // The other stages wait for data that will not arrive. Where the communicator is broken
    // already, its own reason stays.
    comm.abort("pipeline " + step.place() + " failed: " + error.what());
    throw;
  }
}

Pipeline::Pipeline(Communicator comm, PipelineSchedule schedule, std::vector<PipelineChunk> chunks,
                   PipelineOptions options)
    : state_(std::make_unique<State>(std::move(comm), std::move(schedule), std::move(chunks),
                                     std::move(options))) {
  std::vector<PipelineChunk> own;
  for (const auto& [number, chunk] : state_->chunks) own.push_back(chunk);
  internal::agree_on_pipeline(state_->comm, state_->schedule, state_->discipline, own,
                              state_->ties.list());
  state_->ties.spread(state_->comm);
}
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

double Pipeline::step(const PipelineBatch& batch) {
  return step_unread(batch).item<double>();
}
at::Tensor Pipeline::step_unread(const PipelineBatch& batch) {
  return state_->run(batch, true);
}
double Pipeline::evaluate(const PipelineBatch& batch) {
  return state_->run(batch, false).item<double>();
}

const PipelineSchedule& Pipeline::schedule() const {
  return state_->schedule;
}
const std::vector<TimedAction>& Pipeline::executed() const {
  return state_->executed;
}
int Pipeline::most_held() const {
  return state_->most_held;
}
int64_t Pipeline::activation_bytes() const {
  return state_->activation_bytes.value_or(0);
}
void Pipeline::count_activations() {
  state_->activation_bytes.reset();
}
std::optional<MeasuredPipeline> Pipeline::measured() {
  if (!state_->has_step)
    throw InvalidArgument(stage_text(state_->comm) + ": nothing is measured yet; run a step()");
  return internal::gather_measured(state_->comm, state_->schedule, state_->executed,
                                   state_->most_held);
}

}  // namespace lockstep::inline v0
