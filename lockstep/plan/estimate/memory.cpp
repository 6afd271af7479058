#include "lockstep/plan/estimate/memory.h"

#include <algorithm>
#include <utility>

#include "lockstep/plan/estimate/internal/real.h"

namespace lockstep::inline v0::plan {
namespace {

// A layer's parameters on one rank.
StageParameters layer_share(const ModelShape& model, int64_t layer, const Layout& layout) {
  const LayerParameters all = layer_parameters(model, layer);
  return {.dense = real(all.attention + all.mlp) / layout.tensor + real(all.norms + all.router),
          .experts = real(all.experts) / layout.expert / layout.expert_tensor()};
}

// The first and one past the last layer of each chunk.
std::vector<std::pair<int64_t, int64_t>> spans_of(const std::vector<int64_t>& layers) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  int64_t first = 0;
  for (const int64_t count : layers) {
    spans.emplace_back(first, first + count);
    first += count;
  }
  return spans;
}

// By how many ranks a stage's state of each kind is divided.
struct Shards {
  double dense = 1, experts = 1;
};
Shards shards_of(const Layout& layout) {
  const auto within = [&](int64_t ranks) {
    return real(layout.shard_ranks > 0 ? std::min<int64_t>(ranks, layout.shard_ranks) : ranks);
  };
  return {within(layout.replicas()), std::max(1.0, within(layout.expert_replicas()))};
}

double divided(const StageParameters& parameters, const Shards& shards, bool yes) {
  return yes ? parameters.dense / shards.dense + parameters.experts / shards.experts
             : parameters.dense + parameters.experts;
}

// What TransformerLm's ends have beside the layers when the loss is computed.
struct Ends {
  double logits = 0, activations = 0;
};
Ends own_ends(const ModelShape& m, const Layout& layout, const Stack& stack, double element) {
  // Whose logits are there at once (vocabulary_loss.cpp): on processors so many rows; on devices, which compute in 16
  // bits, so many logits, of which the product's, those of 32 bits and their gradient in 16 exist together.
  constexpr double kMostRows = 512, kMostLogits = 64.0 * (1 << 20), kNarrow = 10;
  const bool narrow = layout.precision != Precision::kFloat32;
  constexpr double kOfRow = 48;  // identifiers, targets, losses
  const double words = real(m.vocab) / layout.tensor, rows = real(layout.rows());
  Ends ends;
  const double at_once = std::min(rows, narrow ? kMostLogits / real(m.vocab) : kMostRows);
  ends.logits =
      at_once * words * (narrow ? kNarrow : stack.logit_bytes) + words * real(m.hidden) * element;
  // The last norm's input, its output and the output's gradient; cosines and sines of the positions.
  ends.activations = rows * (3 * real(m.hidden) * element + kOfRow) +
                     2 * 4 * real(layout.sequence * m.head_width()) + 4096;
  return ends;
}

// Of Lockstep's ZeRO: whole gradients on their way to their owners, two buckets of them (zero_optimizer.h).
constexpr double kInTransit = 2 * 25.0 * 1024 * 1024;

// Adapters: two factors beside each of a layer's matrices.
double adapter_parameters(const ModelShape& m, const Layout& layout, double layers) {
  const double widths = real(m.heads * m.head_width() + 2 * m.key_value_heads() * m.head_width() +
                             m.heads * m.value_width() + 4 * m.hidden + 3 * m.ffn);
  return real(layout.adapter_rank) * widths * layers / layout.tensor;
}

}  // namespace

double MemoryParts::total() const {
  double sum = 0;
  for (const auto& [name, bytes] : parts()) sum += bytes;
  return sum;
}

std::vector<std::pair<const char*, double>> MemoryParts::parts() const {
  return {{"parameters", parameters},   {"gradients", gradients}, {"optimizer", optimizer},
          {"activations", activations}, {"logits", logits},       {"gathered", gathered},
          {"buffers", buffers},         {"fixed", fixed},         {"fragmentation", fragmentation}};
}

std::vector<StageParameters> stage_parameters(const ModelShape& model, const Layout& layout) {
  const auto spans = spans_of(chunk_layers(layout, model));
  std::vector<StageParameters> stages(static_cast<size_t>(layout.pipe));
  for (size_t chunk = 0; chunk < spans.size(); ++chunk) {
    StageParameters& stage =
        stages[static_cast<size_t>(stage_of_chunk(layout, static_cast<int>(chunk)))];
    for (int64_t layer = spans[chunk].first; layer < spans[chunk].second; ++layer) {
      const StageParameters share = layer_share(model, layer, layout);
      stage.dense += share.dense;
      stage.experts += share.experts;
    }
  }
  const auto first = static_cast<size_t>(stage_of_chunk(layout, 0));
  const auto last = static_cast<size_t>(stage_of_chunk(layout, layout.pipe * layout.chunks - 1));
  const double words = real(model.vocab * model.hidden) / layout.tensor;
  stages[first].dense += words + real(embedding_parameters(model) - model.vocab * model.hidden);
  const double head = model.head && !model.tied ? real(model.vocab * model.hidden) : 0;
  stages[last].dense += head / layout.tensor + real(head_parameters(model)) - head;
  // Both ends have a tied matrix.
  if (model.head && model.tied && first != last) stages[last].dense += words;
  return stages;
}

int sharers_of(const Layout& layout, const Machine& machine, const Stack& stack) {
  if (!stack.shares_parameters || !machine.host) return 1;
  const GroupPlace place = place_of(layout, "replicas", machine.ranks_per_host);
  return std::max(1, std::min(place.per_host, place.ranks));
}

StageMemory estimate_memory(const ModelShape& model, const Layout& layout, const Stack& stack,
                            PipelineShapes* shapes, int sharers) {
  check(layout, model);
  PipelineShapes own;
  const PipelineShape& shape = (shapes == nullptr ? own : *shapes).of(layout);
  const auto spans = spans_of(chunk_layers(layout, model));
  const auto stages = stage_parameters(model, layout);
  const StateBytes state = state_bytes(layout);
  const Shards shards = shards_of(layout);
  const bool narrow = layout.precision != Precision::kFloat32;
  const double element = narrow ? 2 : 4, rows = real(layout.rows());
  const double alone = layout.divides_rows ? layout.tensor : 1;

  // A layer of each kind is counted once.
  const auto kind_of = [&](int64_t layer) { return model.layer_has_experts(layer) ? 1 : 0; };
  double kept[2] = {}, whole[2] = {}, largest = 0;
  Layout keeps = layout;
  keeps.activations = Activations::kKept;
  for (const int64_t layer : {int64_t{0}, model.layers - 1}) {
    const int kind = kind_of(layer);
    kept[kind] = layer_activation_bytes(model, layer, layout, stack);
    whole[kind] = layer_activation_bytes(model, layer, keeps, stack);
    const StageParameters share = layer_share(model, layer, layout);
    largest = std::max(largest, share.dense + share.experts);
  }
  std::vector<double> of_chunk;
  for (const auto& [first, last] : spans) {
    double bytes = 0;
    for (int64_t layer = first; layer < last; ++layer) bytes += kept[kind_of(layer)];
    of_chunk.push_back(bytes);
  }
  const double words = real(model.vocab * model.hidden) / layout.tensor;
  const int first = stage_of_chunk(layout, 0);
  const int last = stage_of_chunk(layout, layout.pipe * layout.chunks - 1);

  StageMemory found;
  for (int stage = 0; stage < layout.pipe; ++stage) {
    const StageParameters& parameters = stages[static_cast<size_t>(stage)];
    MemoryParts parts;
    parts.parameters = state.parameter * divided(parameters, shards, layout.zero >= 3);
    const bool shares = sharers > 1 && layout.zero >= 1;
    if (shares && layout.zero < 3) parts.parameters /= sharers;
    parts.gradients = state.gradient * divided(parameters, shards, layout.zero >= 2);
    parts.optimizer = state.optimizer * divided(parameters, shards, layout.zero >= 1);
    if (layout.adapter_rank > 0) {
      // Adapters have everything in 32 bits.
      const double own = adapter_parameters(model, layout, real(model.layers) / layout.pipe);
      parts.parameters += 4 * own;
      parts.gradients = 4 * own;
      parts.optimizer = 8 * own;
    }
    const std::vector<int> chunks = shape.schedule.chunks_of(stage);
    const std::vector<int>& held = shape.held[static_cast<size_t>(stage)];
    int held_in_all = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      parts.activations += held[i] * of_chunk[static_cast<size_t>(chunks[i])];
      held_in_all += held[i];
    }
    // What one layer computes anew, or, with a kernel that recomputes by itself, what its backward has beside it.
    double working = 0;
    for (const int kind : {0, 1}) working = std::max(working, whole[kind] - kept[kind]);
    if (layout.activations != Activations::kKept) parts.activations += working;
    if (stage == last && model.head && stack.own_model) {
      const Ends ends = own_ends(model, layout, stack, element);
      parts.logits = ends.logits;
      parts.activations += ends.activations;
    } else if (stage == last && model.head) {
      parts.logits = rows * real(model.vocab) / layout.tensor * stack.logit_bytes;
      parts.activations += 2 * rows * real(model.hidden) * element / alone;
    }
    if (layout.zero >= 3 && !(shares && sharers >= shards.dense)) {
      const double unit = stage == first || stage == last ? std::max(largest, words) : largest;
      const double gathered = layout.reshard ? 2 * unit : parameters.dense + parameters.experts;
      // Gradients of parameters that stay whole add up whole over the micro-batches.
      const double gradients = layout.reshard || layout.micro_batches() == 1
                                   ? unit
                                   : parameters.dense + parameters.experts;
      parts.gathered = element * gathered + state.gradient * gradients;
    } else if (narrow && !layout.masters) {
      parts.gathered = 2 * (parameters.dense + parameters.experts);  // casts, kept for the backward
    }
    // What is received ahead and sent; of our own, each micro-batch's output as well.
    const double messages = stack.own_model ? 2 + 6.0 / layout.tensor + held_in_all : 4;
    constexpr double kOfMessages = 8192;
    if (layout.pipe > 1)
      parts.buffers += messages * rows * real(model.hidden) * element / alone +
                       (stack.own_model ? kOfMessages : 0);
    if (layout.tensor > 1 && !stack.own_model)
      parts.buffers += (layout.divides_rows ? 2 : 1) * rows * real(model.hidden) * element;
    if (stack.own_model && layout.zero >= 2)
      parts.buffers +=
          std::min(state.gradient * (parameters.dense + parameters.experts), kInTransit);
    // What a step has for a moment beside what it keeps.
    if (stack.own_model) parts.activations *= 1 + 1.0 / 128;
    // Gradients that are divided as they come are not there yet when activations are most.
    if (stack.own_model && layout.zero >= 2 && layout.pipe == 1 && layout.micro_batches() == 1)
      parts.activations = std::max(0.0, parts.activations - parts.gradients);
    parts.fixed = stack.fixed_bytes;
    parts.fragmentation = stack.fragmentation * (parts.activations + parts.logits + parts.gathered);
    found.stages.push_back(parts);
    if (parts.total() > found.of_worst().total()) found.worst = stage;
  }
  return found;
}

}  // namespace lockstep::inline v0::plan
