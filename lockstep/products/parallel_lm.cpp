#include "lockstep/products/parallel_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/context/context_parallel_lm.h"
#include "lockstep/parallel/expert/expert_exchange.h"
#include "lockstep/parallel/tensor/tensor_parallel_lm.h"
#include "lockstep/products/internal/state.h"

namespace lockstep {
namespace {

constexpr const char* kEmbeddings = "model.embed_tokens.weight";

ParameterParts drawn_values(const LmConfig& config) {
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone})->drawn_parts();
}

// A few of the values that the ranks are about to take.
uint64_t probe_of(const ParameterParts& values, const LmConfig& config) {
  const at::Tensor some = at::empty({std::min<int64_t>(16, config.hidden_size)}, at::kFloat);
  values(kEmbeddings, 0, some);
  return fingerprint(std::string_view(static_cast<const char*>(some.const_data_ptr()),
                                      static_cast<size_t>(some.nbytes())));
}

// Ranks that are about to make parts of different models are told which differ.
void meet(Communicator& comm, const LmConfig& config, const LmParallelism& how,
          const ParallelLmOptions& options) {
  std::string axes;
  for (const MeshAxis& axis : how.axes)
    axes += (axes.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
  const nlohmann::json mine{
      {"configuration", to_json(config)},
      {"mesh", axes},
      {"schedule", how.schedule + ", " + std::to_string(how.micro_batches) + " micro-batches"},
      {"cut", how.cut},
      {"zero", how.zero},
      {"divided rows", how.divides_rows},
      {"way of the context", static_cast<int>(how.context_way)},
      {"type", static_cast<int>(options.dtype)},
      {"dropout seed", options.dropout_seed},
      {"values", probe_of(options.values, config)}};
  const auto all = all_gather_object(comm, mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const auto& [key, value] : all[0].items()) {
      if (all[rank].at(key) == value) continue;
      const bool is_short = value.dump().size() < 64 && key != "values";
      throw Mismatch(
          "ParallelLm: rank " + std::to_string(rank) + " and rank 0 differ in " + key +
          (is_short ? " (" + all[rank].at(key).dump() + ", " + value.dump() + ")" : std::string()) +
          "; give all ranks the same" +
          (key == "values" ? ", or the same torch::manual_seed() where they are drawn" : ""));
    }
  }
}

LmParallelism prepared(Communicator& comm, const LmConfig& config, const LmParallelism& how,
                       ParallelLmOptions& options) {
  LmParallelism whole = resolved(how, config, comm.size());
  if (options.dtype != at::kFloat && options.dtype != at::kDouble)
    throw InvalidArgument(
        "ParallelLm: parameters are float32 or float64; for bfloat16 products "
        "put autocast around step()");
  if (options.dropout_seed == 0)
    throw InvalidArgument("ParallelLm: dropout_seed is 0; give another");
  if (!options.values) options.values = drawn_values(config);
  meet(comm, config, whole, options);
  return whole;
}

}  // namespace

ParallelLm::State::State(const LmConfig& given_config, Communicator given,
                         const LmParallelism& given_how, const ParallelLmOptions& given_options)
    : comm(std::move(given)),
      config(given_config),
      options(given_options),
      how(prepared(comm, config, given_how, options)),
      mesh(comm, how.axes),
      schedule(make_schedule(how.schedule,
                             {.stages = how.size_of("pipe"), .micro_batches = how.micro_batches})),
      parts(mesh["tensor"], lm_tensor_plan(config), lm_parameter_shapes(config)) {
  LmOptions mine;
  mine.initial = InitialParameters::kNone;
  mine.split = lm_split(config, mesh["tensor"], {.divides_rows = how.divides_rows});
  if (config.has_experts())
    mine.experts = experts_over(mesh["expert"], mesh.over({"data", "context", "expert"}));
  if (how.size_of("context") > 1)
    mine.context = lm_context(mesh["context"], {.way = how.context_way});
  lm = TransformerLm(config, mine);
  const int stage = mesh.place("pipe");
  chunks.emplace(lm, how.cut, LmEnd::kRows);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) shapes[name] = shape;
  const auto names = chunks->parameters_of(schedule, stage);
  const std::set<std::string> here(names.begin(), names.end());
  const bool is_first = schedule.stage_of.front() == stage;
  NamedTensors filled;
  for (auto& [name, tensor] : parameters_of(lm)) {
    if (!here.contains(name)) {
      tensor.set_requires_grad(false);  // another stage's
      continue;
    }
    filled.emplace_back(name, tensor);
  }
  parts.fill(filled, options.values);
  places = parts.places();
  if (options.dtype != at::kFloat) lm->to(options.dtype);
  for (const auto& [name, tensor] : parameters_of(lm)) {
    if (!here.contains(name)) continue;
    own.push_back({name, tensor, parts.slice(name), shapes.at(name),
                   config.tie_word_embeddings && name == kEmbeddings && !is_first});
  }
  classes = make_classes();
  if (options.prepare) options.prepare(lm);
  pipeline.emplace(
      mesh["pipe"], schedule, chunks->chunks_of(schedule, stage),
      PipelineOptions{.discipline = options.discipline, .ties = chunks->ties_of(schedule, stage)});
}

namespace {

// Tokens of a sequence without targets that a micro-batch takes besides, so that each rank along context has some of
// its rows, and rows divide along tensor, where they must. Every rank finds the same.
int64_t padding_of(const LmParallelism& how, std::vector<int64_t> lengths) {
  const int64_t ranks = how.size_of("context"),
                parts = how.divides_rows ? how.size_of("tensor") : 1;
  if (ranks == 1 && parts == 1) return 0;
  const auto fits = [&] {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto rows = static_cast<int64_t>(context_rows(lengths, rank, ranks).size());
      if (rows == 0 || rows % parts != 0) return false;
    }
    return true;
  };
  if (fits()) return 0;
  lengths.push_back(0);
  for (int64_t more = 1; more <= 4 * ranks * parts; ++more) {
    lengths.back() = more;
    if (fits()) return more;
  }
  return 0;  // the model says what does not divide
}

}  // namespace

ParallelLm::State::Row ParallelLm::State::row_of(const LmRowBatch& batch) const {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("ParallelLm: " + what); };
  const at::Tensor &ids = batch.ids, &targets = batch.targets;
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.numel() == 0 || ids.dim() < 1 ||
      ids.dim() > 2 || !ids.is_cpu())
    refuse("ids must be int64 [B, T], or [N] with lengths, on the CPU, and not empty");
  if (!targets.defined() || targets.scalar_type() != at::kLong || targets.sizes() != ids.sizes())
    refuse("targets must be int64, of the shape of ids");
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least < 0 || most >= config.vocab_size)
    refuse("the id " + std::to_string(least < 0 ? least : most) + " is outside the vocabulary of " +
           std::to_string(config.vocab_size));
  std::vector<int64_t> lengths;
  if (ids.dim() == 2) {
    if (batch.lengths.defined()) refuse("lengths go with packed ids [N], not with [B, T]");
    lengths.assign(static_cast<size_t>(ids.size(0)), ids.size(1));
  } else if (batch.lengths.defined()) {
    const at::Tensor flat = batch.lengths.to(at::kLong).contiguous();
    const auto* const first = flat.const_data_ptr<int64_t>();
    lengths.assign(first, first + flat.numel());
  } else {
    lengths = {ids.size(0)};
  }
  if (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) != ids.numel() ||
      std::any_of(lengths.begin(), lengths.end(), [](int64_t length) { return length < 1; }))
    refuse("lengths are 1 or more and sum to the " + std::to_string(ids.numel()) + " ids");
  Row row;
  row.tokens = ids.numel();
  const at::Tensor flat_ids = ids.reshape({-1}), flat_targets = targets.reshape({-1});
  const auto sequences = lengths.size();
  const size_t count = std::min(sequences, static_cast<size_t>(how.micro_batches));
  int64_t token = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = lengths.begin() + static_cast<std::ptrdiff_t>(sequences * i / count),
               end = lengths.begin() + static_cast<std::ptrdiff_t>(sequences * (i + 1) / count);
    row.lengths.emplace_back(begin, end);
    const int64_t tokens = std::accumulate(begin, end, int64_t{0});
    at::Tensor own_ids = flat_ids.narrow(0, token, tokens);
    at::Tensor own_targets = flat_targets.narrow(0, token, tokens);
    at::Tensor places;
    row.targets_in.push_back(own_targets.ne(-100).sum().item<int64_t>());
    row.all_targets += row.targets_in.back();
    if (const int64_t more = padding_of(how, row.lengths.back()); more > 0) {
      row.lengths.back().push_back(more);
      own_ids = at::cat({own_ids, at::zeros({more}, at::kLong)});
      own_targets = at::cat({own_targets, at::full({more}, -100, at::kLong)});
      places = at::arange(tokens + more);
    }
    if (how.size_of("context") > 1) {
      places = lm->own_rows(row.lengths.back());
      own_ids = own_ids.index_select(0, places);
      own_targets = own_targets.index_select(0, places);
    }
    // What was added has its place behind the batch.
    if (places.defined()) places = at::where(places.lt(tokens), places + token, row.tokens);
    row.ids.push_back(own_ids);
    row.targets.push_back(own_targets);
    row.places.push_back(places);
    row.tokens_of.push_back(tokens);
    token += tokens;
  }
  if (row.all_targets == 0) refuse("a batch without a target; give at least one that is not -100");
  return row;
}

PipelineBatch ParallelLm::State::pipeline_batch(const Row& row, double scale) {
  const uint64_t seed = options.dropout_seed * 0x9E3779B97F4A7C15ull +
                        (steps++ << 20) * 0xBF58476D1CE4E5B9ull +
                        static_cast<uint64_t>(mesh.over({"data", "expert"}).rank());
  PipelineBatch batch;
  batch.rows = chunks->begin(row.lengths, seed | 1);
  batch.input = [row](const MicroBatch& micro) {
    return row.ids[static_cast<size_t>(micro.index)];
  };
  batch.loss = [this, row, scale](const at::Tensor& rows, const MicroBatch& micro) {
    const auto index = static_cast<size_t>(micro.index);
    if (row.targets_in[index] == 0) return rows.sum() * 0;
    const double share =
        static_cast<double>(row.targets_in[index]) / static_cast<double>(row.all_targets);
    return chunks->loss(rows, micro, row.targets[index]) * (share * scale);
  };
  return batch;
}

ParallelLm::ParallelLm(const LmConfig& config, Communicator comm, const LmParallelism& how,
                       const ParallelLmOptions& options)
    : state_(std::make_unique<State>(config, std::move(comm), how, options)) {}
ParallelLm::ParallelLm(ParallelLm&&) noexcept = default;
ParallelLm& ParallelLm::operator=(ParallelLm&&) noexcept = default;
ParallelLm::~ParallelLm() = default;

double ParallelLm::step(const LmRowBatch& batch, double scale) {
  const State::Row row = state_->row_of(batch);
  state_->lm->train();
  const double loss = state_->pipeline->step(state_->pipeline_batch(row, scale));
  return loss / scale;
}

double ParallelLm::evaluate(const LmRowBatch& batch) {
  const State::Row row = state_->row_of(batch);
  const bool training = state_->lm->is_training();
  state_->lm->eval();
  const double loss = state_->pipeline->evaluate(state_->pipeline_batch(row, 1));
  state_->lm->train(training);
  return loss;
}

TokenScores ParallelLm::scores(const LmRowBatch& batch) {
  State& state = *state_;
  const State::Row row = state.row_of(batch);
  const bool training = state.lm->is_training();
  state.lm->eval();
  PipelineBatch of = state.pipeline_batch(row, 1);
  const at::Tensor all = at::zeros({row.tokens + 1, 2}, at::kDouble);
  const at::Tensor both = all.narrow(0, 0, row.tokens);
  int64_t token = 0;  // without what was added
  of.loss = [&](const at::Tensor& rows, const MicroBatch& micro) {
    const auto index = static_cast<size_t>(micro.index);
    const TokenScores scores = state.chunks->scores(rows, micro, row.targets[index]);
    const at::Tensor mine = at::stack({scores.losses, scores.likeliest.to(at::kDouble)}, 1);
    const at::Tensor& places = row.places[index];
    const int64_t tokens = row.tokens_of[index];
    if (places.defined())
      all.index_copy_(0, places, mine);
    else
      both.narrow(0, token, tokens).copy_(mine);
    token += tokens;
    return scores.losses.sum();
  };
  state.pipeline->evaluate(of);
  if (state.how.size_of("context") > 1) state.mesh["context"].all_reduce(both);
  state.mesh["pipe"].broadcast(both, state.schedule.stage_of.back());
  state.lm->train(training);
  return {both.select(1, 0).contiguous(), both.select(1, 1).ne(0)};
}

void ParallelLm::scale_gradients(double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const LmParameterPart& part : state_->own)
    if (part.tensor.grad().defined()) part.tensor.mutable_grad().mul_(factor);
}

const LmConfig& ParallelLm::config() const {
  return state_->config;
}
const LmParallelism& ParallelLm::parallelism() const {
  return state_->how;
}
const Mesh& ParallelLm::mesh() const {
  return state_->mesh;
}
Communicator ParallelLm::rows() const {
  return state_->mesh.over({"data", "expert"});
}
TransformerLm& ParallelLm::module() {
  return state_->lm;
}
const std::vector<LmParameterPart>& ParallelLm::parameters() const {
  return state_->own;
}
const Pipeline& ParallelLm::pipeline() const {
  return *state_->pipeline;
}

}  // namespace lockstep
