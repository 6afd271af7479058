#include "lockstep/plan/estimate/part_times.h"

#include "lockstep/plan/estimate/internal/chunk_times.h"
#include "lockstep/plan/estimate/internal/real.h"
#include "lockstep/plan/estimate/internal/update_time.h"

namespace lockstep::inline v0::plan {

namespace internal {

PartFactors measured_factors(const Layout& layout, const Stack& stack, StepPart part,
                             const PartShape& shape) {
  return layout.precision == Precision::kFloat32 ? factors_of(stack.measured, part, shape)
                                                 : PartFactors{};
}

double update_time(double elements, const Layout& layout, const Machine& machine,
                   const Stack& stack) {
  // Each element of the state is read and written, the gradient read twice: for its norm, and for the update.
  const StateBytes state = state_bytes(layout);
  const double bytes = 2 * state.optimizer + 2 * state.parameter + 2 * state.gradient;
  const PartFactors measured =
      measured_factors(layout, stack, StepPart::kUpdate, update_part(elements));
  return elements * bytes / (machine.memory_bandwidth * stack.memory) * measured.forward;
}

}  // namespace internal

PartShape layer_part(const ModelShape& model, int tensor, double rows, double sequence) {
  const int64_t inner = model.layer_has_experts(model.layers - 1)
                            ? model.expert_ffn * model.experts_per_token + model.shared_ffn
                            : model.ffn;
  return {.width = real(model.hidden),
          .inner = real(inner) / tensor,
          .rows = rows,
          .sequence = sequence};
}

PartShape ends_part(const ModelShape& model, int tensor, double rows) {
  return {.width = real(model.hidden), .inner = real(model.vocab) / tensor, .rows = rows};
}

PartShape update_part(double elements) {
  return {.inner = elements};
}

PartTimes part_times(const ModelShape& model, const Layout& layout, const Machine& machine,
                     const Stack& stack) {
  ModelShape one = model;
  one.layers = 1;
  Layout alone;
  alone.micro_batch = alone.global_batch = layout.micro_batch;
  alone.sequence = layout.sequence;
  alone.precision = layout.precision;
  alone.masters = layout.masters;
  alone.optimizer = layout.optimizer;
  alone.gradient_bytes = layout.gradient_bytes;
  check(machine);
  check(alone, one);
  const internal::ChunkTimes all = internal::chunk_times(one, alone, machine, stack).front();
  PartTimes times;
  // Passes tell the ends from the layer.
  times.ends_forward = all.forward.head;
  times.ends_backward = all.backward.head + all.weights.head;
  times.layer_forward = all.forward.total() - times.ends_forward;
  times.layer_backward = all.backward.total() + all.weights.total() - times.ends_backward;
  times.update = internal::update_time(real(parameter_count(model)), alone, machine, stack);
  return times;
}

}  // namespace lockstep::inline v0::plan
