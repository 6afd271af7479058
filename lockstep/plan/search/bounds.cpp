#include "lockstep/plan/search/bounds.h"

#include <algorithm>

namespace lockstep::inline v0::plan {
namespace {

double as(int64_t number) {
  return static_cast<double>(number);
}

// What a pipeline's bubble is at least, in micro-batches of a stage. Zero-bubble schedules have what
// passes until the last stage has its first rows: a forward of each stage before it, of which each
// is a quarter of its work or more; of zb-v's two chunks, the first.
double least_bubble(const Layout& layout) {
  const double stages = layout.pipe;
  if (layout.schedule == "interleaved") return (stages - 1) / layout.chunks;
  if (layout.schedule == "zb-h1") return (stages - 1) / 4;
  if (layout.schedule == "zb-v") return (stages - 1) / 8;
  return stages - 1;
}

bool is_zero_bubble(const Layout& layout) {
  return layout.pipe > 1 && (layout.schedule == "zb-h1" || layout.schedule == "zb-v");
}

}  // namespace

double least_step(const ModelShape& model, const Layout& layout, const Machine& machine,
                  const Stack& stack) {
  // The input embeddings are looked up, and a causal mask leaves half of the scores.
  const FlopConvention counted{.name = "least",
                               .per_parameter = layout.adapter_rank > 0 ? 4.0 : 6.0,
                               .scores = 6,
                               .embeddings = false,
                               .recomputed = false,
                               .used_by = ""};
  const double of_token = flops_per_token(
      model, layout.attended > 0 ? std::min(layout.attended, layout.sequence) : layout.sequence,
      counted);
  // A second forward of the layers, but not of the head; somewhat less, for a kernel may keep a
  // part.
  const double of_head =
      model.head ? counted.per_parameter * static_cast<double>(model.hidden * model.vocab) : 0;
  const double again = layout.activations == Activations::kRecomputed
                           ? 1 + 0.3 * std::max(0.0, 1 - of_head / of_token)
                           : 1;
  const double share = std::min(1.0, std::max(stack.matrix, stack.attention));
  double measured = 1;  // parts may be faster than their rooflines
  for (const MeasuredPart& part : stack.measured)
    measured = std::min({measured, part.forward, part.backward});
  const double speed = machine.peak(layout.precision) * share * as(layout.ranks()) / measured;
  return of_token * as(layout.global_batch * layout.sequence) / speed * again;
}

MicroBatchWork work_of(const ModelShape& model, const Layout& layout, const Machine& machine,
                       const Stack& stack, PipelineShapes* shapes) {
  Layout one = layout;
  one.global_batch = layout.batch_ranks() * layout.micro_batch;
  one.schedule = "1f1b";
  one.chunks = 1;
  one.zero = 0;
  one.shard_ranks = 0;
  const TimeParts time = estimate(model, one, machine, stack, shapes).time;
  const double layers = time.matrices + time.attention + time.elementwise + time.recomputation +
                        time.tensor + time.context + time.expert;
  MicroBatchWork work;
  work.slowest = layers + time.head;
  // Layers without experts are lighter: only the others count.
  const int64_t alike = model.has_experts() ? model.layers - model.dense_layers : model.layers;
  const int64_t least = model.layers / layout.pipe;
  const double of_layer = layers / as((model.layers + layout.pipe - 1) / layout.pipe);
  work.mean = of_layer * as(alike) / layout.pipe;
  work.lightest = of_layer * as(std::max<int64_t>(0, least - (model.layers - alike)));
  work.waits_for_nothing =
      machine.host && machine.processors > 0 && machine.processors < machine.ranks_per_host;
  return work;
}

double least_step(const Layout& layout, const MicroBatchWork& work) {
  const double batches = as(layout.micro_batches());
  // Any cut has a stage with the mean of the work.
  if (!layout.cut.empty() || work.waits_for_nothing) return batches * work.mean;
  if (is_zero_bubble(layout)) {
    const double stage = layout.chunks == 1 ? work.slowest : work.mean;
    return std::max(batches * stage, (batches + least_bubble(layout)) * work.lightest);
  }
  const double stage = layout.chunks == 1 ? work.slowest : work.mean;
  return batches * stage + least_bubble(layout) * work.lightest;
}

}  // namespace lockstep::inline v0::plan
