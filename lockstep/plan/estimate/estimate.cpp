#include "lockstep/plan/estimate/estimate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/plan/estimate/internal/chunk_times.h"
#include "lockstep/plan/estimate/internal/real.h"
#include "lockstep/plan/estimate/internal/update_time.h"
#include "lockstep/plan/machine/late_rank.h"
#include "lockstep/plan/pipeline_timing.h"

namespace lockstep::inline v0::plan {
namespace {

using internal::ChunkTimes;
using internal::Pass;

// What happens once a step: averages of gradients, gathers of parameters, the optimizer.
struct Once {
  double gradients = 0, parameters = 0, optimizer = 0;
};

GroupPlace shard_place(const Layout& layout, const Machine& machine) {
  GroupPlace place = place_of(layout, "replicas", machine.ranks_per_host);
  if (layout.shard_ranks == 0) return place;
  place.ranks = std::min(place.ranks, layout.shard_ranks);
  place.per_host = std::min(place.per_host, place.ranks);
  return place;
}

// The ranks that average experts' gradients: their data ranks, or with folded experts what expert leaves of all.
GroupPlace expert_place(const Layout& layout, const Machine& machine) {
  const GroupPlace expert = place_of(layout, "expert", machine.ranks_per_host);
  GroupPlace place = place_of(layout, "data", machine.ranks_per_host);
  place.ranks = static_cast<int>(std::max<int64_t>(1, layout.expert_replicas()));
  if (layout.experts_folded)
    place.per_host = std::clamp(machine.ranks_per_host / std::max(1, expert.ranks), 1, place.ranks);
  place.per_host = std::min(place.per_host, place.ranks);
  return place;
}

Once once_of(const StageParameters& parameters, const Layout& layout, const Machine& machine,
             const Stack& stack, double backward, double forward) {
  Once once;
  const StateBytes state = state_bytes(layout);
  const double element = layout.precision == Precision::kFloat32 ? 4 : 2;
  const auto time = [&](Collective collective, double bytes, const GroupPlace& place) {
    return collective_time(collective, bytes, place, machine, stack.links);
  };
  if (layout.adapter_rank == 0) {
    const GroupPlace all = place_of(layout, "replicas", machine.ranks_per_host);
    const GroupPlace experts = expert_place(layout, machine);
    const double dense_bytes = parameters.dense * state.gradient,
                 expert_bytes = parameters.experts * state.gradient;
    if (layout.zero == 0) {
      const double sum = time(Collective::kAllReduce, dense_bytes, all) +
                         time(Collective::kAllReduce, expert_bytes, experts);
      once.gradients = internal::exposed(sum, backward, stack.overlap);
    } else if (layout.zero < 3 || !layout.reshard) {
      const double reduce = time(Collective::kReduceScatter, dense_bytes, all) +
                            time(Collective::kReduceScatter, expert_bytes, experts);
      const auto among = [&](const GroupPlace& place) {
        return internal::gathered_among(place, machine, stack);
      };
      const double gather =
          time(Collective::kAllGather, parameters.dense * element, among(all)) +
          time(Collective::kAllGather, parameters.experts * element, among(experts));
      once.gradients = internal::exposed(reduce, backward, stack.overlap);
      once.parameters = internal::exposed(gather, forward, stack.overlap);
    } else if (layout.shard_ranks > 0) {
      // Groups that hold whole copies average what each of their ranks has.
      const GroupPlace shards = shard_place(layout, machine);
      const GroupPlace copies{.ranks = all.ranks / shards.ranks,
                              .per_host = std::max(1, all.per_host / shards.ranks)};
      const double sum = time(Collective::kAllReduce, dense_bytes / shards.ranks, copies);
      once.gradients = internal::exposed(sum, backward, stack.overlap);
    }
  }
  const bool divided = layout.zero >= 1;
  const double own = divided
                         ? parameters.dense / real(layout.shard_ranks > 0 ? layout.shard_ranks
                                                                          : layout.replicas()) +
                               parameters.experts / std::max(1.0, real(layout.expert_replicas()))
                         : parameters.dense + parameters.experts;
  if (layout.adapter_rank == 0) once.optimizer = internal::update_time(own, layout, machine, stack);
  return once;
}

// How long a step's micro-batches take, with and without the messages between stages.
struct Piped {
  double makespan = 0, without_messages = 0;
};
// `pace`: how long a further micro-batch takes, at least. `share`: of a processor, that every rank has while all of them
// compute; below 1 those that compute share the processors of those that wait, and are faster then.
Piped piped(const Layout& layout, const std::vector<ChunkTimes>& chunks,
            const PipelineSchedule& schedule, double pace, double share) {
  const double batches = real(layout.micro_batches());
  if (layout.pipe == 1) return {batches * pace, batches * pace};
  // A chunk may be the last norm alone, which counts nothing.
  constexpr double kLeast = 1e-12;
  std::vector<PipelineTimes> times;
  for (const ChunkTimes& chunk : chunks)
    times.push_back({std::max(kLeast, chunk.forward.total() * share),
                     chunk.backward.total() * share, chunk.weights.total() * share, chunk.sent});
  const double further = (batches - schedule.micro_batches) * pace;
  const auto lasts = [&] {
    return std::max(batches * pace,
                    time_of(schedule, times, share * layout.pipe).makespan + further);
  };
  Piped found;
  found.makespan = lasts();
  for (PipelineTimes& one : times) one.communication = 0;
  // Where processors are shared, a stage that begins later may leave its share to one that all wait for.
  found.without_messages = std::min(lasts(), found.makespan);
  return found;
}

// The processors that a rank has, 1 at most, where they are fewer than the ranks of a host.
double processors_of_rank(const Machine& machine) {
  if (!machine.host || machine.processors == 0) return 1;
  return std::min(1.0, static_cast<double>(machine.processors) / machine.ranks_per_host);
}

ChunkTimes slowest_of(const std::vector<ChunkTimes>& stages) {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const auto& a, const auto& b) { return a.all() < b.all(); });
}

// What each stage computes where those that wait leave their processors to the others.
ChunkTimes mean_of(const std::vector<ChunkTimes>& stages) {
  ChunkTimes mean;
  for (const ChunkTimes& stage : stages) mean += stage;
  for (internal::Pass* pass : {&mean.forward, &mean.backward, &mean.weights})
    pass->scale(1 / real(stages.size()));
  mean.recomputed /= real(stages.size());
  return mean;
}

// What ranks compute by themselves before they meet once a step: all of it, or, where they meet in each layer, the rest.
double alone_of(const Layout& layout, const TimeParts& time) {
  const double rest = time.head + time.optimizer;
  if (layout.tensor > 1 || layout.context > 1 || layout.expert > 1) return rest;
  return rest + time.matrices + time.attention + time.elementwise + time.recomputation;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

}  // namespace

double TimeParts::total() const {
  double sum = 0;
  for (const auto& [name, seconds] : parts()) sum += seconds;
  return sum;
}

std::vector<std::pair<const char*, double>> TimeParts::parts() const {
  return {{"matrices", matrices},
          {"attention", attention},
          {"elementwise", elementwise},
          {"recomputation", recomputation},
          {"head", head},
          {"tensor", tensor},
          {"context", context},
          {"expert", expert},
          {"gradients", gradients},
          {"parameters", parameters},
          {"pipeline", pipeline},
          {"bubble", bubble},
          {"optimizer", optimizer},
          {"late", late},
          {"host", host}};
}

std::vector<std::string> Estimate::losses() const {
  std::vector<std::string> found;
  if (!fits()) {
    char text[96];
    std::snprintf(text, sizeof text, "stage %d does not fit by %.1f GiB", memory.worst,
                  -spare_bytes / (1024.0 * 1024 * 1024));
    found.emplace_back(text);
  }
  const std::pair<const char*, double> all[] = {
      {"bubble of the pipeline", time.bubble},
      {"recomputed activations", time.recomputation},
      {"exposed collectives of tensor", time.tensor},
      {"exposed exchange of context", time.context},
      {"exposed exchange of experts' tokens", time.expert},
      {"exposed averages of gradients", time.gradients},
      {"exposed all-gather of parameters", time.parameters},
      {"exposed messages between stages", time.pipeline},
      {"waiting for the slowest rank", time.late},
      {"optimizer", time.optimizer}};
  std::vector<std::pair<const char*, double>> sorted(std::begin(all), std::end(all));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, seconds] : sorted)
    if (seconds >= 0.005 * step) found.push_back(std::string(name) + " " + percent(seconds / step));
  return found;
}

Estimate estimate(const ModelShape& model, const Layout& layout, const Machine& machine,
                  const Stack& stack, PipelineShapes* shapes) {
  check(machine);
  PipelineShapes own;
  if (shapes == nullptr) shapes = &own;
  Estimate found;
  found.memory = estimate_memory(model, layout, stack, shapes,
                                 sharers_of(layout, machine, stack));  // checks model and layout
  found.spare_bytes = machine.memory - found.memory.of_worst().total();
  const std::vector<ChunkTimes> chunks = internal::chunk_times(model, layout, machine, stack);
  const PipelineSchedule& schedule = shapes->of(layout).schedule;
  std::vector<ChunkTimes> stages(static_cast<size_t>(layout.pipe));
  for (size_t i = 0; i < chunks.size(); ++i)
    stages[static_cast<size_t>(stage_of_chunk(layout, static_cast<int>(i)))] += chunks[i];
  // Stages of several hosts have no processors in common.
  const bool together = place_of(layout, "pipe", machine.ranks_per_host).per_host == layout.pipe;
  const double share = together ? processors_of_rank(machine) : 1;
  const ChunkTimes most = slowest_of(stages);
  const ChunkTimes slowest = share < 1 ? mean_of(stages) : most;
  const double batches = real(layout.micro_batches());
  // A stage has one processor at most, however many wait.
  const double pace = std::max(slowest.all(), share * most.all());
  const Piped pipe = piped(layout, chunks, schedule, pace, share);

  TimeParts& time = found.time;
  Pass sum = slowest.forward;
  sum += slowest.backward;
  sum += slowest.weights;
  const double again = slowest.recomputed > 0 ? slowest.recomputed : 0;
  const double computed = sum.matrices + sum.attention + sum.elementwise;
  const double once_computed = computed > 0 ? (computed - again) / computed : 1;
  time.matrices = batches * sum.matrices * once_computed;
  time.attention = batches * sum.attention * once_computed;
  time.elementwise = batches * sum.elementwise * once_computed;
  time.recomputation = batches * again;
  time.head = batches * sum.head;
  time.tensor = batches * sum.tensor;
  time.context = batches * sum.context;
  time.expert = batches * sum.expert;
  time.parameters = batches * sum.parameters;
  time.pipeline = pipe.makespan - pipe.without_messages;
  time.bubble = pipe.without_messages - batches * slowest.all();
  // The averages start when the last micro-batch's gradients are there.
  const auto parameters = stage_parameters(model, layout);
  Once once;
  for (size_t i = 0; i < stages.size(); ++i) {
    const double backward = stages[i].backward.total() + stages[i].weights.total();
    const Once one =
        once_of(parameters[i], layout, machine, stack, backward, stages[i].forward.total());
    if (one.gradients + one.parameters + one.optimizer >
        once.gradients + once.parameters + once.optimizer)
      once = one;
  }
  time.gradients = once.gradients;
  time.parameters += once.parameters;
  time.optimizer = once.optimizer;
  time.host = batches * sum.host;
  time.late = batches * sum.late;
  time.late +=
      late_time(stack.jitter, alone_of(layout, time), 1, static_cast<int>(layout.ranks())) +
      time.total() * stack.straggling * std::log2(std::max<double>(1, real(layout.ranks())));
  found.step = time.total();
  found.tokens_per_second =
      real(layout.global_batch * layout.sequence) / found.step / real(layout.ranks());
  found.bubble = time.bubble / found.step;
  found.exposed = time.exposed() / found.step;
  return found;
}

double flops_per_second(const Estimate& found, const ModelShape& model, const Layout& layout,
                        const FlopConvention& convention) {
  const bool again = layout.activations == Activations::kRecomputed;
  return found.tokens_per_second * flops_per_token(model, layout.sequence, convention, again);
}

double utilization(const Estimate& found, const ModelShape& model, const Layout& layout,
                   const Machine& machine, const FlopConvention& convention) {
  return flops_per_second(found, model, layout, convention) / machine.peak(layout.precision);
}

double step_of(double tokens_per_second, const Layout& layout) {
  return real(layout.global_batch * layout.sequence) / tokens_per_second / real(layout.ranks());
}

}  // namespace lockstep::inline v0::plan
