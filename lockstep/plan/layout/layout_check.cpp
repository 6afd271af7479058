#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0::plan {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("layout: " + what);
}

std::string text(int64_t number) {
  return std::to_string(number);
}

void at_least_one(const char* name, int64_t value) {
  if (value < 1) refuse(std::string(name) + " is " + text(value) + "; give 1 or more");
}

void divides(int64_t whole, int64_t parts, const std::string& what, const std::string& remedy) {
  if (whole % parts != 0)
    refuse(text(whole) + " " + what + " do not divide among " + text(parts) + "; " + remedy);
}

void check_sizes(const Layout& layout) {
  at_least_one("data", layout.data);
  at_least_one("pipe", layout.pipe);
  at_least_one("context", layout.context);
  at_least_one("expert", layout.expert);
  at_least_one("tensor", layout.tensor);
  at_least_one("chunks", layout.chunks);
  at_least_one("micro_batch", layout.micro_batch);
  at_least_one("global_batch", layout.global_batch);
  at_least_one("sequence", layout.sequence);
  if (layout.zero < 0 || layout.zero > 3)
    refuse("zero is " + text(layout.zero) + "; give a stage from 0 to 3");
  if (layout.shard_ranks < 0) refuse("shard_ranks is below 0; give 0 for all ranks");
  if (layout.adapter_rank < 0) refuse("adapter_rank is below 0; give 0 to train everything");
  if (layout.gradient_bytes != 0 && layout.gradient_bytes != 2 && layout.gradient_bytes != 4)
    refuse("gradient_bytes is " + text(layout.gradient_bytes) +
           "; give 2, 4, or 0 for the parameters' own");
  const std::set<std::string> axes(layout.order.begin(), layout.order.end());
  if (axes != std::set<std::string>{"data", "pipe", "context", "expert", "tensor"} ||
      layout.order.size() != 5)
    refuse("the order is of " + joined(layout.order) +
           "; give data, pipe, context, expert and tensor once each");
}

void check_batch(const Layout& layout) {
  divides(layout.global_batch, layout.batch_ranks() * layout.micro_batch,
          "sequences of the global batch",
          "that many are " + text(layout.batch_ranks()) + " ranks with micro-batches of " +
              text(layout.micro_batch) + "; give a multiple");
  divides(layout.sequence, layout.context, "tokens of a sequence", "give a divisor along context");
  if (layout.divides_rows)
    divides(layout.rows(), layout.tensor, "rows of a micro-batch", "give a divisor along tensor");
  if (layout.shard_ranks > 0 && layout.replicas() % layout.shard_ranks != 0)
    refuse(text(layout.replicas()) + " ranks that average gradients are no groups of " +
           text(layout.shard_ranks) + "; give a divisor");
}

void check_tensor(const Layout& layout, const ModelShape& model) {
  const int tensor = layout.tensor;
  if (tensor == 1) return;
  const std::string remedy = "give a divisor along tensor";
  divides(model.heads, tensor, "heads", remedy);
  const int64_t keys = model.key_value_heads();
  if (model.kv_rank == 0 && keys % tensor != 0 && tensor % keys != 0)
    refuse(text(keys) + " heads of keys and values do not divide among " + text(tensor) + "; " +
           remedy);
  if (!model.has_experts() || model.dense_layers > 0)
    divides(model.ffn, tensor, "inner columns", remedy);
  if (model.has_experts() && layout.expert_tensor() > 1)
    divides(model.expert_ffn, tensor, "inner columns of an expert", remedy);
  if (model.vocab < tensor)
    refuse(text(model.vocab) + " words for " + text(tensor) + " ranks along tensor; " + remedy);
}

void check_experts(const Layout& layout, const ModelShape& model) {
  if (layout.expert == 1) return;
  if (!model.has_experts())
    refuse("expert is " + text(layout.expert) +
           ", and the model has no experts; put these ranks along data");
  divides(model.experts, layout.expert, "experts", "give a divisor along expert");
  const int64_t ranks = static_cast<int64_t>(layout.data) * layout.context * layout.tensor;
  if (layout.experts_folded && ranks % layout.expert != 0)
    refuse("expert is " + text(layout.expert) + " of the " + text(ranks) +
           " ranks of data, context and tensor; give a divisor");
}

void check_pipeline(const Layout& layout, const ModelShape& model) {
  const int64_t chunks = static_cast<int64_t>(layout.pipe) * layout.chunks;
  if (layout.pipe == 1 && layout.chunks > 1)
    refuse(text(layout.chunks) + " chunks without a pipeline; give 1, or ranks along pipe");
  if (layout.cut.empty() && chunks > model.layers)
    refuse(text(chunks) + " chunks, and the model has " + text(model.layers) +
           " layers; give fewer ranks along pipe or fewer chunks");
  if (!layout.cut.empty()) {
    if (static_cast<int64_t>(layout.cut.size()) != chunks)
      refuse("the cut has " + text(static_cast<int64_t>(layout.cut.size())) +
             " chunks, and the pipeline " + text(chunks) + "; give one number for each");
    const int64_t sum = std::accumulate(layout.cut.begin(), layout.cut.end(), int64_t{0});
    if (sum != model.layers ||
        std::any_of(layout.cut.begin(), layout.cut.end(), [](int64_t n) { return n < 0; }))
      refuse("the cut's chunks have " + text(sum) + " layers, and the model " + text(model.layers) +
             "; give numbers that sum to it");
  }
  if (layout.pipe == 1) return;
  const auto& names = schedule_names();
  if (std::find(names.begin(), names.end(), layout.schedule) == names.end())
    refuse("there is no schedule '" + layout.schedule + "'; give one of " + joined(names));
  const bool several = layout.schedule == "interleaved" || layout.schedule == "zb-v";
  if (!several && layout.chunks > 1)
    refuse("the schedule " + layout.schedule +
           " has one chunk a stage; give chunks 1, or interleaved");
  if (layout.schedule == "zb-v" && layout.chunks != 2)
    refuse("the schedule zb-v has two chunks a stage; give chunks 2");
  if (layout.schedule == "interleaved" && layout.chunks > 1) {
    const int64_t batches = layout.micro_batches(),
                  groups = std::max<int64_t>(1, batches / layout.pipe);
    if (batches % groups != 0)
      refuse(text(batches) + " micro-batches are no " + text(groups) +
             " equal groups, in which the schedule interleaved goes round; give a multiple of " +
             text(layout.pipe));
  }
}

}  // namespace

void check(const Layout& layout, const ModelShape& model) {
  check(model);
  check_sizes(layout);
  check_experts(layout, model);
  check_tensor(layout, model);
  check_batch(layout);
  check_pipeline(layout, model);
}

}  // namespace lockstep::inline v0::plan
