#include "lockstep/plan/estimate/internal/chunk_times.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/estimate/internal/real.h"
#include "lockstep/plan/estimate/internal/update_time.h"
#include "lockstep/plan/estimate/part_times.h"
#include "lockstep/plan/machine/late_rank.h"
#include "lockstep/plan/model/operators.h"

namespace lockstep::inline v0::plan::internal {
namespace {

// A layer's passes, and what it sends.
struct LayerTimes {
  Pass forward, backward, weights;
  double recomputed = 0;
};

class Clock {
 public:
  Clock(const ModelShape& model, const Layout& layout, const Machine& machine, const Stack& stack)
      : model_(model), layout_(layout), machine_(machine), stack_(stack) {
    element_ = layout.precision == Precision::kFloat32 ? 4 : 2;
    rows_ = real(layout.rows());
    alone_ = layout.divides_rows ? layout.tensor : 1;
    tensor_ = place_of(layout, "tensor", machine.ranks_per_host);
    context_ = place_of(layout, "context", machine.ranks_per_host);
    expert_ = place_of(layout, "expert", machine.ranks_per_host);
    pipe_ = place_of(layout, "pipe", machine.ranks_per_host);
    shards_ = place_of(layout, "replicas", machine.ranks_per_host);
    if (layout.shard_ranks > 0) {
      shards_.ranks = std::min(shards_.ranks, layout.shard_ranks);
      shards_.per_host = std::min(shards_.per_host, shards_.ranks);
    }
  }

  LayerTimes layer(int64_t index) const;
  Pass embeddings() const {
    Pass pass;
    pass.head = moved(4 * rows_ * real(model_.hidden) / alone_);
    return pass;
  }
  // Of the embeddings, the head and the loss, as they were measured.
  PartFactors ends_factors() const {
    return factors(StepPart::kEnds, ends_part(model_, layout_.tensor, rows_));
  }
  // The head, with the loss or without it.
  Pass head(bool loss) const;
  double message() const;
  // The wait for the slowest of these ranks, which meet so many times in what takes so long.
  double late(double seconds, double waits, const GroupPlace& place) const {
    return late_time(stack_.jitter, seconds, waits, place.ranks);
  }
  double send(Collective collective, double bytes, const GroupPlace& place) const {
    return collective_time(collective, bytes, place, machine_, stack_.links);
  }

 private:
  double share(double size) const { return size / (size + stack_.half); }
  // One product, by its FLOPs or by its bytes, and not below the launch of a kernel.
  double product(const MatrixProduct& p, Precision precision) const {
    const double peak = machine_.peak(precision) * stack_.matrix * share(p.rows) *
                        share(p.columns) * share(p.inner);
    const double bytes =
        element_ * p.count * (p.rows * p.inner + p.inner * p.columns + p.rows * p.columns);
    // Operands are read where they are, with nothing allocated or passed over again: at the machine's own bandwidth.
    return std::max({p.flops() / peak, bytes / machine_.memory_bandwidth, machine_.launch});
  }
  double bandwidth() const { return machine_.memory_bandwidth * stack_.memory; }
  double moved(double elements) const { return elements * element_ / bandwidth(); }
  // Eight bits are made of sixteen: read, and written for two layouts. Of the weights it happens once a step, and is
  // not counted.
  double cast(double elements) const {
    if (layout_.precision != Precision::kFloat8 || machine_.float8 == 0) return 0;
    return 4 * elements / bandwidth();
  }
  double attended() const {
    return real(layout_.attended > 0 ? layout_.attended : layout_.sequence);
  }
  PartFactors factors(StepPart part, const PartShape& shape) const {
    return measured_factors(layout_, stack_, part, shape);
  }
  double reduce_of_rows() const;
  double sent_once() const;
  void add_communication(int64_t index, LayerTimes& times) const;
  void add_gathers(int64_t index, LayerTimes& times) const;

  const ModelShape& model_;
  const Layout& layout_;
  const Machine& machine_;
  const Stack& stack_;
  double element_ = 2, rows_ = 1, alone_ = 1;
  GroupPlace tensor_, context_, expert_, pipe_, shards_;
};

// The sum over tensor of a layer's rows, whole or with rows divided: as many bytes in both ways.
double Clock::reduce_of_rows() const {
  const double bytes = rows_ * real(model_.hidden) * element_;
  return layout_.divides_rows ? send(Collective::kReduceScatter, bytes, tensor_) +
                                    send(Collective::kAllGather, bytes, tensor_)
                              : send(Collective::kAllReduce, bytes, tensor_);
}

LayerTimes Clock::layer(int64_t index) const {
  const bool experts = model_.layer_has_experts(index);
  const double copies =
      rows_ * real(model_.experts_per_token) / (layout_.experts_folded ? layout_.tensor : 1);
  const LayerOperators found =
      layer_operators(model_, index,
                      {.rows = rows_,
                       .sequence = attended(),
                       .tensor = layout_.tensor,
                       .expert_tensor = layout_.expert_tensor(),
                       .experts_here = experts ? real(model_.experts) / layout_.expert : 0,
                       .expert_rows = experts ? copies : 0});
  LayerTimes times;
  Pass& forward = times.forward;
  constexpr double kLaunches = 4;  // of what is not a product, fused as far as it can be
  double inputs = 0, outputs = 0;  // casts of a product's input, and of its output's gradient
  for (const MatrixProduct& p : found.products) {
    const bool router = experts && p.columns == real(model_.experts);
    forward.matrices += product(p, router ? Precision::kBFloat16 : layout_.precision);
    if (router) continue;
    inputs += cast(p.count * p.rows * p.inner);
    outputs += cast(p.count * p.rows * p.columns);
  }
  double elements = (found.whole_rows / alone_ + found.divided) * stack_.passes;
  const double masks = model_.dropout ? 2 * rows_ * real(model_.hidden) / alone_ : 0;
  elements += masks * stack_.passes;
  forward.elementwise = std::max(moved(elements), kLaunches * machine_.launch);
  double scores = 0;  // elementwise work on attention's scores
  const Precision wide =
      layout_.precision == Precision::kFloat8 ? Precision::kBFloat16 : layout_.precision;
  if (stack_.fused_attention) {
    forward.attention = found.score_flops / (machine_.peak(wide) * stack_.attention);
  } else {
    const double flops = found.score_flops * (model_.causal ? 2 : 1);
    forward.attention = flops / (machine_.peak(wide) * stack_.attention);
    // Read and written by the softmax; with dropout once more, and its mask.
    scores = found.scores * (model_.dropout ? 4 * element_ + 1 : 2 * element_) * stack_.passes /
             bandwidth();
    forward.elementwise += scores;
  }
  // Gradients of inputs: as many products; norms and the like read what they read and the gradients.
  Pass& backward = times.backward;
  backward.matrices = forward.matrices;
  backward.elementwise = 1.5 * forward.elementwise + outputs;
  forward.elementwise += inputs;
  forward.host = stack_.host / 3;
  backward.host = 2 * stack_.host / 3;
  // A kernel of all attention computes the scores again: five products for two.
  backward.attention = forward.attention * (stack_.fused_attention ? 2.5 : 2);
  if (layout_.adapter_rank == 0) times.weights.matrices = forward.matrices;
  const PartFactors measured =
      factors(StepPart::kLayer, layer_part(model_, layout_.tensor, rows_, attended()));
  forward.scale_work(measured.forward);
  backward.scale_work(measured.backward);
  times.weights.scale_work(measured.backward);
  const double computed = forward.total();
  add_communication(index, times);
  switch (layout_.activations) {
    case Activations::kKept:
      break;
    case Activations::kSelective:
      if (!stack_.fused_attention) {
        times.recomputed = forward.attention / 2 + scores;
        backward.attention += forward.attention / 2;
        backward.elementwise += scores;
      }
      break;
    case Activations::kAlternate:
      times.recomputed = (forward.matrices + forward.elementwise) / 2;
      backward.matrices += forward.matrices / 2;
      backward.elementwise += forward.elementwise / 2;
      break;
    case Activations::kRecomputed:
      times.recomputed = computed;
      backward += forward;
      break;
  }
  add_gathers(index, times);
  return times;
}

// A token goes to each host once, and there to its experts: of k copies to h hosts, h (1 - (1 - 1/h)^k) leave.
double Clock::sent_once() const {
  const double hosts = std::ceil(static_cast<double>(expert_.ranks) / expert_.per_host);
  if (hosts <= 1) return 1;
  const double copies = real(model_.experts_per_token);
  return std::min(1.0, hosts * (1 - std::pow(1 - 1 / hosts, copies)) / copies);
}

void Clock::add_communication(int64_t index, LayerTimes& times) const {
  const bool experts = model_.layer_has_experts(index);
  const double hidden = real(model_.hidden);
  const double forward = times.forward.work(),
               backward = times.backward.work() + times.weights.work();
  if (layout_.tensor > 1) {
    const double sums = experts && layout_.experts_folded ? 1 : 2;
    const double time = sums * reduce_of_rows();
    times.forward.tensor = exposed(time, times.forward.matrices, stack_.tensor_overlap);
    times.backward.tensor = exposed(time, times.backward.matrices, stack_.tensor_overlap);
    times.forward.late += late(forward, sums, tensor_);
    times.backward.late += late(backward, sums, tensor_);
  }
  if (layout_.context > 1) {
    const double keys = model_.kv_rank > 0
                            ? real(model_.heads) * real(model_.score_width() + model_.value_width())
                            : 2 * real(model_.key_value_heads() * model_.head_width());
    const double bytes = rows_ * keys / layout_.tensor * element_;
    // Blocks of keys and values go round while the block before them is used; in the backward their gradients, too,
    // which go home at last.
    const double steps = layout_.context - 1, back = 2 * steps + 1;
    const double time = send(Collective::kSend, bytes, context_);
    times.forward.context = exposed(steps * time, times.forward.attention, stack_.overlap);
    times.backward.context = exposed(back * time, times.backward.attention, stack_.overlap);
    times.forward.late += late(forward, steps, context_);
    times.backward.late += late(backward, back, context_);
  }
  if (experts && layout_.expert > 1) {
    const double copies =
        rows_ * real(model_.experts_per_token) / (layout_.experts_folded ? layout_.tensor : 1);
    const double bytes = copies * hidden * element_ * sent_once();
    const double time = 2 * send(Collective::kAllToAll, bytes, expert_);
    times.forward.expert = times.backward.expert = time;
    times.forward.late += late(forward, 2, expert_);
    times.backward.late += late(backward, 2, expert_);
  }
}

// Parameters that all ranks share are gathered for each pass, and gradients divided after it, while the next layer
// computes.
void Clock::add_gathers(int64_t index, LayerTimes& times) const {
  if (layout_.zero < 3 || !layout_.reshard) return;
  const LayerParameters all = layer_parameters(model_, index);
  const double parameters = real(all.attention + all.mlp) / layout_.tensor +
                            real(all.norms + all.router) +
                            real(all.experts) / layout_.expert / layout_.expert_tensor();
  const double gather = send(Collective::kAllGather, parameters * element_,
                             gathered_among(shards_, machine_, stack_));
  const double reduce =
      send(Collective::kReduceScatter, parameters * state_bytes(layout_).gradient, shards_);
  times.forward.parameters = exposed(gather, times.forward.total(), stack_.overlap);
  const double window = times.backward.total() + times.weights.total();
  times.backward.parameters = exposed(gather + reduce, window, stack_.overlap);
}

Pass Clock::head(bool loss) const {
  Pass pass;
  const double words = real(model_.vocab) / layout_.tensor;
  const Precision wide =
      layout_.precision == Precision::kFloat8 ? Precision::kBFloat16 : layout_.precision;
  pass.head = product({rows_, words, real(model_.hidden)}, wide);
  if (loss) pass.head += 2 * moved(rows_ * words) * stack_.passes;
  return pass;
}

double Clock::message() const {
  const double bytes = rows_ * real(model_.hidden) * element_;
  // Each rank of tensor sends its part, and they gather the whole unless rows stay divided.
  const double part = send(Collective::kSend, bytes / layout_.tensor, pipe_);
  return layout_.tensor > 1 && !layout_.divides_rows
             ? part + send(Collective::kAllGather, bytes, tensor_)
             : part;
}

}  // namespace

Pass& Pass::operator+=(const Pass& other) {
  matrices += other.matrices;
  attention += other.attention;
  elementwise += other.elementwise;
  head += other.head;
  tensor += other.tensor;
  context += other.context;
  expert += other.expert;
  parameters += other.parameters;
  late += other.late;
  host += other.host;
  return *this;
}

ChunkTimes& ChunkTimes::operator+=(const ChunkTimes& other) {
  forward += other.forward;
  backward += other.backward;
  weights += other.weights;
  recomputed += other.recomputed;
  return *this;
}

void Pass::scale_work(double factor) {
  for (double* part : {&matrices, &attention, &elementwise, &head, &host}) *part *= factor;
}

GroupPlace gathered_among(const GroupPlace& place, const Machine& machine, const Stack& stack) {
  if (!stack.shares_parameters || !machine.host) return place;
  const int here = std::max(1, std::min(place.per_host, place.ranks));
  return {.ranks = (place.ranks + here - 1) / here, .per_host = 1};
}

void Pass::scale(double factor) {
  scale_work(factor);
  for (double* part : {&tensor, &context, &expert, &parameters, &late}) *part *= factor;
}

double exposed(double communication, double window, double overlap) {
  return communication - overlap * std::min(communication, window);
}

std::vector<ChunkTimes> chunk_times(const ModelShape& model, const Layout& layout,
                                    const Machine& machine, const Stack& stack) {
  const Clock clock(model, layout, machine, stack);
  // Layers of a kind are alike.
  const LayerTimes dense = model.layer_has_experts(0) ? LayerTimes{} : clock.layer(0);
  const LayerTimes expert =
      model.layer_has_experts(model.layers - 1) ? clock.layer(model.layers - 1) : LayerTimes{};
  std::vector<ChunkTimes> chunks;
  int64_t layer = 0;
  for (const int64_t count : chunk_layers(layout, model)) {
    ChunkTimes times;
    for (int64_t i = 0; i < count; ++i, ++layer) {
      const LayerTimes& one = model.layer_has_experts(layer) ? expert : dense;
      times.forward += one.forward;
      times.backward += one.backward;
      times.weights += one.weights;
      times.recomputed += one.recomputed;
    }
    // Between two messages there are a forward and a backward.
    if (layout.pipe > 1)
      times.sent = clock.message() + clock.late(times.all() / 2, 1, {.ranks = 2});
    chunks.push_back(times);
  }
  const PartFactors ends = clock.ends_factors();
  const auto add = [](Pass& to, Pass work, double factor) {
    work.scale_work(factor);
    to += work;
  };
  add(chunks.front().forward, clock.embeddings(), ends.forward);
  add(chunks.front().weights, clock.embeddings(), ends.backward);
  if (model.head) {
    add(chunks.back().forward, clock.head(true), ends.forward);
    add(chunks.back().backward, clock.head(true), ends.backward);
    if (layout.adapter_rank == 0) add(chunks.back().weights, clock.head(false), ends.backward);
  }
  return chunks;
}

}  // namespace lockstep::inline v0::plan::internal
