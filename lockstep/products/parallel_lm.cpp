#include "lockstep/products/parallel_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
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
  options.values = nullptr;  // which may hold a whole model
  places = parts.places();
  if (const at::Device device = comm.device(); device.is_cpu()) {
    if (options.dtype != at::kFloat) lm->to(options.dtype);
  } else {
    // Not by to(): what other stages have takes no memory of the device.
    const auto there = at::TensorOptions(options.dtype).device(device);
    for (auto& [name, tensor] : parameters_of(lm))
      tensor.set_data(here.contains(name) ? tensor.detach().to(there)
                                          : at::zeros({1}, there).expand(tensor.sizes()));
  }
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

// Lengths of sequences without targets that a micro-batch takes besides, so that each rank along context has some of
// its rows, and rows divide along tensor, where they must. The fewest that do, found breadth first over what
// remains of the ranks' rows; every rank of a row finds the same. Throws InvalidArgument where there are none.
std::vector<int64_t> padding_of(const LmParallelism& how, const std::vector<int64_t>& lengths,
                                int64_t longest) {
  const int64_t ranks = how.size_of("context"),
                parts = how.divides_rows ? how.size_of("tensor") : 1;
  if (ranks == 1 && parts == 1) return {};
  const auto rows_of = [&](const std::vector<int64_t>& of) {
    std::vector<int64_t> rows;
    for (int64_t rank = 0; rank < ranks; ++rank)
      rows.push_back(static_cast<int64_t>(context_rows(of, rank, ranks).size()));
    return rows;
  };
  // Rows beyond 2 * parts count as so many fewer: what matters is whether there are any, and what remains.
  const auto reduced = [&](std::vector<int64_t> rows) {
    for (int64_t& count : rows)
      if (count > parts) count = parts + count % parts;
    return rows;
  };
  const auto fits = [&](const std::vector<int64_t>& rows) {
    return std::all_of(rows.begin(), rows.end(),
                       [&](int64_t count) { return count > 0 && count % parts == 0; });
  };
  const std::vector<int64_t> start = rows_of(lengths);
  if (fits(start)) return {};
  std::vector<std::vector<int64_t>> added;
  for (int64_t more = 1; more <= std::min(longest, 2 * ranks * parts); ++more)
    added.push_back(rows_of({more}));
  std::map<std::vector<int64_t>, std::vector<int64_t>> seen{{reduced(start), {}}};
  std::vector<std::vector<int64_t>> border{reduced(start)};
  while (!border.empty() && seen.size() < 4096) {
    std::vector<std::vector<int64_t>> next;
    for (const auto& rows : border) {
      for (size_t i = 0; i < added.size(); ++i) {
        std::vector<int64_t> sum = rows, path = seen.at(rows);
        for (size_t rank = 0; rank < sum.size(); ++rank) sum[rank] += added[i][rank];
        sum = reduced(std::move(sum));
        path.push_back(static_cast<int64_t>(i) + 1);
        if (fits(sum)) return path;
        if (seen.emplace(sum, std::move(path)).second) next.push_back(sum);
      }
    }
    border = std::move(next);
  }
  throw InvalidArgument("ParallelLm: rows of these sequences do not divide among " +
                        std::to_string(ranks) + " ranks along context and " +
                        std::to_string(parts) +
                        " along tensor; give sequences whose lengths are multiples of " +
                        std::to_string(2 * ranks * parts) + ", or leave divided rows out");
}

}  // namespace

ParallelLm::State::Row ParallelLm::State::row_of(const LmRowBatch& batch, bool step) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("ParallelLm: " + what); };
  if (!batch.ids.defined() || batch.ids.scalar_type() != at::kLong || batch.ids.numel() == 0 ||
      batch.ids.dim() < 1 || batch.ids.dim() > 2)
    refuse("ids must be int64 [B, T], or [N] with lengths, and not empty");
  if (!batch.targets.defined() || batch.targets.scalar_type() != at::kLong ||
      batch.targets.sizes() != batch.ids.sizes())
    refuse("targets must be int64, of the shape of ids");
  // What the ranks of a row compare, and how it is cut, is the host's to find out.
  const at::Tensor ids = batch.ids.cpu(), targets = batch.targets.cpu();
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least < 0 || most >= config.vocab_size)
    refuse("the id " + std::to_string(least < 0 ? least : most) + " is outside the vocabulary of " +
           std::to_string(config.vocab_size));
  const at::Tensor wrong =
      targets.ne(-100).logical_and_(targets.lt(0).logical_or_(targets.ge(config.vocab_size)));
  if (wrong.any().item<bool>())
    refuse("the target " + std::to_string(targets.masked_select(wrong)[0].item<int64_t>()) +
           " is outside the vocabulary of " + std::to_string(config.vocab_size) +
           "; -100 is for none");
  std::vector<int64_t> lengths;
  if (ids.dim() == 2) {
    if (batch.lengths.defined()) refuse("lengths go with packed ids [N], not with [B, T]");
    lengths.assign(static_cast<size_t>(ids.size(0)), ids.size(1));
  } else if (batch.lengths.defined()) {
    const at::Tensor flat = batch.lengths.to(at::kCPU, at::kLong).contiguous();
    const auto* const first = flat.const_data_ptr<int64_t>();
    lengths.assign(first, first + flat.numel());
  } else {
    lengths = {ids.size(0)};
  }
  if (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) != ids.numel() ||
      std::any_of(lengths.begin(), lengths.end(), [](int64_t length) { return length < 1; }))
    refuse("lengths are 1 or more and sum to the " + std::to_string(ids.numel()) + " ids");
  for (const int64_t length : lengths)
    if (length > config.max_position_embeddings)
      refuse("a sequence of " + std::to_string(length) + " tokens; give 1 to " +
             std::to_string(config.max_position_embeddings));
  Row row;
  row.tokens = ids.numel();
  const at::Tensor flat_ids = ids.reshape({-1}), flat_targets = targets.reshape({-1});
  const auto sequences = lengths.size();
  agree_on_row(flat_ids, flat_targets, lengths);
  const size_t count = micro_batches_of(sequences, step);
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
    const std::vector<int64_t> padding =
        padding_of(how, row.lengths.back(), config.max_position_embeddings);
    row.padding.push_back(static_cast<int64_t>(padding.size()));
    if (!padding.empty()) {
      const int64_t more = std::accumulate(padding.begin(), padding.end(), int64_t{0});
      row.lengths.back().insert(row.lengths.back().end(), padding.begin(), padding.end());
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
  return row;
}

// Ranks of a row whose batches differ would train on what none of them was given.
void ParallelLm::State::agree_on_row(const at::Tensor& ids, const at::Tensor& targets,
                                     const std::vector<int64_t>& lengths) {
  Communicator row = mesh.over({"pipe", "context", "tensor"});
  if (row.size() == 1) return;
  const auto mark = [](const void* data, size_t bytes) {
    return static_cast<uint32_t>(
        fingerprint(std::string_view(static_cast<const char*>(data), bytes)));
  };
  const at::Tensor a = ids.contiguous(), b = targets.contiguous();
  std::array<char, 56> text{};
  std::snprintf(text.data(), text.size(), "row: ids %08x targets %08x lengths %08x",
                mark(a.const_data_ptr(), a.nbytes()), mark(b.const_data_ptr(), b.nbytes()),
                mark(lengths.data(), lengths.size() * sizeof(int64_t)));
  row.iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, call_note(text.data())).wait();
}

// Tokens go to other rows' experts in every micro-batch, so these rows run as many; in evaluation those along expert
// alone, which have the same batches.
size_t ParallelLm::State::micro_batches_of(size_t sequences, bool training) {
  const size_t count = std::min(sequences, static_cast<size_t>(how.micro_batches));
  if (!config.has_experts()) return count;
  Communicator rows = mesh.over(training ? std::vector<std::string>{"data", "expert"}
                                         : std::vector<std::string>{"expert"});
  if (rows.size() == 1) return count;
  const at::Tensor least = at::full({1}, static_cast<int64_t>(count), at::kLong);
  rows.iall_reduce(least, ReduceOp::kMin, call_note("ParallelLm: micro-batches")).wait();
  return static_cast<size_t>(least.item<int64_t>());
}

PipelineBatch ParallelLm::State::pipeline_batch(const Row& row, double scale) {
  const uint64_t seed = options.dropout_seed * 0x9E3779B97F4A7C15ull +
                        (steps << 20) * 0xBF58476D1CE4E5B9ull +
                        2 * static_cast<uint64_t>(mesh.over({"data", "expert"}).rank());
  PipelineBatch batch;
  batch.rows = chunks->begin(row.lengths, seed | 1, scale, row.padding);
  batch.input = [row, device = comm.device()](const MicroBatch& micro) {
    return device::copy_to(row.ids[static_cast<size_t>(micro.index)], device);
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
  return step_unread(batch, scale).item<double>();
}

at::Tensor ParallelLm::step_unread(const LmRowBatch& batch, double scale) {
  const State::Row row = state_->row_of(batch, /*step=*/true);
  state_->lm->train();
  const at::Tensor loss = state_->pipeline->step_unread(state_->pipeline_batch(row, scale));
  ++state_->steps;
  return loss / scale;
}

double ParallelLm::evaluate(const LmRowBatch& batch) {
  const State::Row row = state_->row_of(batch, /*step=*/false);
  const bool training = state_->lm->is_training();
  state_->lm->eval();
  const double loss = state_->pipeline->evaluate(state_->pipeline_batch(row, 1));
  state_->lm->train(training);
  return loss;
}

TokenScores ParallelLm::scores(const LmRowBatch& batch) {
  State& state = *state_;
  const State::Row row = state.row_of(batch, /*step=*/false);
  const bool training = state.lm->is_training();
  state.lm->eval();
  PipelineBatch of = state.pipeline_batch(row, 1);
  const at::Device device = state.comm.device();
  const at::Tensor all =
      at::zeros({row.tokens + 1, 2}, at::TensorOptions(at::kDouble).device(device));
  const at::Tensor both = all.narrow(0, 0, row.tokens);
  int64_t token = 0;  // without what was added
  of.loss = [&](const at::Tensor& rows, const MicroBatch& micro) {
    const auto index = static_cast<size_t>(micro.index);
    const TokenScores scores = state.chunks->scores(rows, micro, row.targets[index]);
    const at::Tensor mine = at::stack({scores.losses, scores.likeliest.to(at::kDouble)}, 1);
    const at::Tensor& places = row.places[index];
    const int64_t tokens = row.tokens_of[index];
    if (places.defined())
      all.index_copy_(0, device::copy_to(places, device), mine);
    else
      both.narrow(0, token, tokens).copy_(mine);
    token += tokens;
    return scores.losses.sum();
  };
  state.pipeline->evaluate(of);
  if (state.how.size_of("context") > 1) state.mesh["context"].all_reduce(both);
  state.mesh["pipe"].broadcast(both, state.schedule.stage_of.back());
  state.lm->train(training);
  const at::Tensor here = both.to(batch.ids.device());
  return {here.select(1, 0).contiguous(), here.select(1, 1).ne(0)};
}

std::vector<at::Tensor> ParallelLm::take_gradients() {
  std::vector<at::Tensor> all;
  for (const LmParameterPart& part : state_->own)
    all.push_back(std::exchange(part.tensor.mutable_grad(), at::Tensor()));
  return all;
}

void ParallelLm::scale_gradients(const at::Tensor& factor) {
  if (factor.is_cpu()) return scale_gradients(factor.item<double>());
  std::vector<at::Tensor> there;
  for (const LmParameterPart& part : state_->own)
    if (part.tensor.grad().defined()) there.push_back(part.tensor.grad());
  const at::NoGradGuard no_grad;
  if (!there.empty()) at::_foreach_mul_(there, factor.reshape({}).to(there.front().scalar_type()));
}

void ParallelLm::scale_gradients(double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const LmParameterPart& part : state_->own)
    if (part.tensor.grad().defined()) part.tensor.mutable_grad().mul_(factor);
}

std::vector<RouterStatistics> ParallelLm::routers() {
  State& state = *state_;
  const LmConfig& config = state.config;
  if (!config.has_experts()) return {};
  // Of a layer: choices of each expert, left out, entropy, balance, and how many have counted it.
  const int64_t experts = config.num_local_experts;
  const at::Tensor all = at::zeros({config.num_hidden_layers, experts + 4}, at::kDouble);
  for (const RouterStatistics& one : state.chunks->routers()) {
    auto* const numbers = all.select(0, one.layer).mutable_data_ptr<double>();
    for (int64_t e = 0; e < experts; ++e)
      numbers[e] = static_cast<double>(one.choices[static_cast<size_t>(e)]);
    const std::array<double, 4> rest{static_cast<double>(one.left_out), one.entropy, one.balance,
                                     1};
    std::copy(rest.begin(), rest.end(), numbers + experts);
  }
  // Where there are losses, a rank has counted the tokens of all already (LmExperts::combine).
  std::vector<std::string> axes{"pipe"};
  if (config.router_aux_loss_coef == 0 && config.router_z_loss_coef == 0)
    axes.insert(axes.end(), {"data", "context", "expert"});
  state.mesh.over(axes)
      .iall_reduce(all, ReduceOp::kSum, call_note("ParallelLm: what routers did"))
      .wait();
  std::vector<RouterStatistics> layers;
  for (int64_t layer = 0; layer < all.size(0); ++layer) {
    const auto* const numbers = all.select(0, layer).const_data_ptr<double>();
    const double* const rest = numbers + experts;
    if (rest[3] == 0) continue;
    RouterStatistics& one = layers.emplace_back();
    one.layer = layer;
    for (int64_t e = 0; e < experts; ++e) one.choices.push_back(static_cast<int64_t>(numbers[e]));
    one.left_out = static_cast<int64_t>(rest[0]);
    one.entropy = rest[1] / rest[3];
    one.balance = rest[2] / rest[3];
  }
  return layers;
}

void ParallelLm::set_steps(uint64_t steps) {
  state_->steps = steps;
}
uint64_t ParallelLm::steps() const {
  return state_->steps;
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
void ParallelLm::count_activations() {
  state_->pipeline->count_activations();
}
const Pipeline& ParallelLm::pipeline() const {
  return *state_->pipeline;
}

}  // namespace lockstep
