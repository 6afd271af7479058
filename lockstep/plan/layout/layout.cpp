#include "lockstep/plan/layout/layout.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/lm_cut.h"

namespace lockstep::inline v0::plan {
namespace {

constexpr const char* kActivations[] = {"kept", "selective", "alternate", "recomputed"};
constexpr const char* kOptimizers[] = {"adamw", "momentum", "sgd"};

template <typename Value, size_t N>
Value parse(std::string_view text, const char* const (&names)[N], const char* what) {
  std::vector<std::string> all;
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<Value>(i);
    all.emplace_back(names[i]);
  }
  throw InvalidArgument(std::string(what) + " '" + std::string(text) + "': give one of " +
                        joined(all));
}

int size_of(const Layout& layout, std::string_view axis) {
  if (axis == "data") return layout.data;
  if (axis == "pipe") return layout.pipe;
  if (axis == "context") return layout.context;
  if (axis == "tensor") return layout.tensor;
  if (axis == "expert") return layout.experts_folded ? 1 : layout.expert;
  throw InvalidArgument("layout: there is no axis '" + std::string(axis) +
                        "'; give data, pipe, context, expert or tensor");
}

}  // namespace

const char* name_of(Activations activations) {
  return kActivations[static_cast<size_t>(activations)];
}
Activations parse_activations(std::string_view text) {
  return parse<Activations>(text, kActivations, "activations");
}
const char* name_of(Optimizer optimizer) {
  return kOptimizers[static_cast<size_t>(optimizer)];
}
Optimizer parse_optimizer(std::string_view text) {
  return parse<Optimizer>(text, kOptimizers, "optimizer");
}

int64_t Layout::ranks() const {
  return static_cast<int64_t>(data) * pipe * context * tensor * (experts_folded ? 1 : expert);
}
int64_t Layout::batch_ranks() const {
  return static_cast<int64_t>(data) * (experts_folded ? 1 : expert);
}
int64_t Layout::micro_batches() const {
  return global_batch / (batch_ranks() * micro_batch);
}
int64_t Layout::rows() const {
  return micro_batch * sequence / context;
}
int64_t Layout::replicas() const {
  return batch_ranks() * context;
}
int64_t Layout::expert_replicas() const {
  const int64_t all = static_cast<int64_t>(data) * context;
  return experts_folded ? all * tensor / expert : all;
}

GroupPlace place_of(const Layout& layout, std::string_view axis, int ranks_per_host) {
  const bool folded = axis == "expert" && layout.experts_folded;
  const auto belongs = [&](const std::string& one) {
    if (axis == "replicas") return one == "data" || one == "context" || one == "expert";
    if (folded) return one == "data" || one == "context" || one == "tensor";
    return one == axis;
  };
  // From the innermost axis: as many of its ranks as the host has room for.
  int room = ranks_per_host, here = 1;
  int64_t all = 1;
  for (auto one = layout.order.rbegin(); one != layout.order.rend(); ++one) {
    const int size = size_of(layout, *one), fitting = std::clamp(room, 1, size);
    if (belongs(*one)) {
      all *= size;
      here *= fitting;
    }
    room = fitting < size ? 1 : room / size;
  }
  if (folded) {
    all = layout.expert;
    here = std::min(here, layout.expert);
  }
  return {.ranks = static_cast<int>(all), .per_host = here};
}

StateBytes state_bytes(const Layout& layout) {
  if (layout.adapter_rank > 0)
    return {.parameter = layout.precision == Precision::kFloat32 || !layout.masters ? 4.0 : 2.0};
  const double moments = layout.optimizer == Optimizer::kAdamW      ? 8
                         : layout.optimizer == Optimizer::kMomentum ? 4
                                                                    : 0;
  const bool narrow = layout.precision != Precision::kFloat32 && layout.masters;
  const double parameter = narrow ? 2 : 4;
  return {.parameter = parameter,
          .gradient = layout.gradient_bytes > 0 ? layout.gradient_bytes : parameter,
          .optimizer = moments + (narrow ? 4 : 0)};
}

std::vector<int64_t> lockstep_cut(const ModelShape& model, int chunks) {
  const auto layer = static_cast<double>(layer_parameters(model, model.layers - 1).total());
  const auto words = static_cast<double>(model.vocab * model.hidden);
  return layers_of_cut(lm_cut(model.layers, layer, words, chunks), model.layers);
}

std::vector<int64_t> chunk_layers(const Layout& layout, const ModelShape& model) {
  if (!layout.cut.empty()) return layout.cut;
  const int64_t chunks = static_cast<int64_t>(layout.pipe) * layout.chunks;
  std::vector<int64_t> layers(static_cast<size_t>(chunks), model.layers / chunks);
  for (int64_t i = 0; i < model.layers % chunks; ++i) ++layers[static_cast<size_t>(i)];
  return layers;
}

std::string to_string(const Layout& layout) {
  std::string text;
  const auto add = [&](const std::string& part, const char* separator) {
    text += (text.empty() ? "" : separator) + part;
  };
  for (const std::string& axis : layout.order) {
    const int size = axis == "expert" ? layout.expert : size_of(layout, axis);
    if (size > 1) add(axis + "=" + std::to_string(size), " ");
  }
  if (text.empty()) text = "one rank";
  if (layout.pipe > 1)
    add(layout.schedule + (layout.chunks > 1 ? " x " + std::to_string(layout.chunks) : ""), ", ");
  if (layout.zero > 0) {
    add("zero " + std::to_string(layout.zero), ", ");
    if (layout.shard_ranks > 0) text += " in groups of " + std::to_string(layout.shard_ranks);
  }
  add("micro-batch " + std::to_string(layout.micro_batch) + " x " +
          std::to_string(layout.micro_batches()),
      ", ");
  add(name_of(layout.activations), ", ");
  if (layout.divides_rows && layout.tensor > 1) add("divided rows", ", ");
  return text;
}

}  // namespace lockstep::inline v0::plan
