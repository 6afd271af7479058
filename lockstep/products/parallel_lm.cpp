#include "lockstep/products/parallel_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/context/token_part.h"
#include "lockstep/parallel/expert/expert_exchange.h"
#include "lockstep/products/internal/state.h"
#include "lockstep/shard/parallelize.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kEmbeddings = "model.embed_tokens.weight";

ParameterParts drawn_values(const LmConfig& config) {
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone})->drawn_parts();
}

// A few of the values that the ranks are about to take, for their comparison.
uint64_t probe_of(const ParameterParts& values, const LmConfig& config) {
  const at::Tensor some = at::zeros({std::min<int64_t>(16, config.hidden_size)}, at::kFloat);
  values(kEmbeddings, 0, some);
  return fingerprint(std::string_view(static_cast<const char*>(some.const_data_ptr()),
                                      static_cast<size_t>(some.nbytes())));
}

// Tells ranks that are about to make parts of different models which values differ.
void meet(Communicator& comm, const LmConfig& config, const Parallelism& how,
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

Parallelism prepared(Communicator& comm, const LmConfig& config, const Parallelism& how,
                     ParallelLmOptions& options) {
  Parallelism whole = resolved(how, config, comm.size());
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
                         const Parallelism& given_how, const ParallelLmOptions& given_options)
    : comm(std::move(given)),
      config(given_config),
      options(given_options),
      how(prepared(comm, config, given_how, options)),
      mesh(comm, how.axes),
      schedule(make_schedule(how.schedule,
                             {.stages = how.size_of("pipe"), .micro_batches = how.micro_batches})) {
  TensorParts parts = lm_tensor_parts(config, mesh["tensor"]);
  LmOptions mine;
  mine.initial = InitialParameters::kNone;
  if (config.has_experts())
    mine.experts = experts_over(mesh["expert"], mesh.over({"data", "context", "expert"}));
  lm = TransformerLm(config, mine);
  lm->take_tokens(token_part(mesh["context"], how.context_way));
  const int stage = mesh.place("pipe");
  chunks.emplace(lm, how.cut, LmEnd::kRows);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) shapes[name] = shape;
  const auto names = chunks->parameters_of(schedule, stage);
  const std::set<std::string> here(names.begin(), names.end());
  const bool is_first = schedule.stage_of.front() == stage;
  // Memory that is never written takes no page.
  const auto values_here = [&](const std::string& name, int64_t begin, const at::Tensor& part) {
    if (here.contains(name)) options.values(name, begin, part);
  };
  parallelize(*lm, mesh["tensor"], lm_tensor_plan(config),
              {.divides_rows = how.divides_rows, .values = values_here});
  for (auto& [name, tensor] : parameters_of(lm))
    if (!here.contains(name)) tensor.set_requires_grad(false);  // it belongs to another stage
  options.values = nullptr;                                     // it may hold a whole model
  if (const at::Device device = comm.device(); device.is_cpu()) {
    if (options.dtype != at::kFloat) lm->to(options.dtype);
  } else {
    // It does not use to(), so that other stages' parameters take no memory of the device.
    const auto there = at::TensorOptions(options.dtype).device(device);
    for (auto& [name, tensor] : parameters_of(lm))
      tensor.set_data(here.contains(name) ? tensor.detach().to(there)
                                          : at::zeros({1}, there).expand(tensor.sizes()));
  }
  std::vector<DividedParameter> own;
  for (const auto& [name, tensor] : parameters_of(lm)) {
    if (!here.contains(name)) continue;
    DividedParameter& part = own.emplace_back();
    part = {.name = name,
            .tensor = tensor,
            .slice = parts.slice(name),
            .shape = shapes.at(name),
            .copy = config.tie_word_embeddings && name == kEmbeddings && !is_first};
    // An expert's gradient is of the tokens of every rank along expert already.
    if (!is_expert_parameter(name)) part.averaged.emplace_back("expert");
  }
  const auto home = [stage_of = stages_of_parameters(), each = mesh["expert"].size(),
                     experts = config.num_local_experts](const std::string& name) {
    std::map<std::string, int> places{{"pipe", stage_of.at(name)}};
    if (const int64_t expert = expert_of(name); expert >= 0)
      places["expert"] = static_cast<int>(expert * each / experts);
    return places;
  };
  divided.emplace(ModelDivision{.owner = "ParallelLm",
                                .comm = comm,
                                .mesh = mesh,
                                .whole = lm_parameter_shapes(config),
                                .parts = std::move(parts),
                                .own = std::move(own),
                                .home = home,
                                .zero = how.zero,
                                .dtype = options.dtype,
                                .module = lm.ptr()});
  if (options.prepare) options.prepare(lm);
  pipeline.emplace(
      mesh["pipe"], schedule, chunks->chunks_of(schedule, stage),
      PipelineOptions{.discipline = options.discipline, .ties = chunks->ties_of(schedule, stage)});
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

ParallelLm::ParallelLm(const LmConfig& config, Communicator comm, const Parallelism& how,
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
  return scale == 0 ? loss : loss / scale;
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
  int64_t token = 0;  // without padding
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
  for (const DividedParameter& part : parameters())
    all.push_back(std::exchange(part.tensor.mutable_grad(), at::Tensor()));
  return all;
}

void ParallelLm::scale_gradients(const at::Tensor& factor) {
  if (factor.is_cpu()) return scale_gradients(factor.item<double>());
  std::vector<at::Tensor> there;
  for (const DividedParameter& part : parameters())
    if (part.tensor.grad().defined()) there.push_back(part.tensor.grad());
  const at::NoGradGuard no_grad;
  if (!there.empty()) at::_foreach_mul_(there, factor.reshape({}).to(there.front().scalar_type()));
}

void ParallelLm::scale_gradients(double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const DividedParameter& part : parameters())
    if (part.tensor.grad().defined()) part.tensor.mutable_grad().mul_(factor);
}

std::vector<RouterStatistics> ParallelLm::routers() {
  State& state = *state_;
  const LmConfig& config = state.config;
  if (!config.has_experts()) return {};
  // A row of the tensor is a layer's: choices of each expert, tokens left out, entropy, balance,
  // and the number of ranks that have counted it.
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
  // Where the routers have losses, a rank has counted the tokens of all ranks already
  // (ExpertExchange::combine).
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
const Parallelism& ParallelLm::parallelism() const {
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
const std::vector<DividedParameter>& ParallelLm::parameters() const {
  return divided().own();
}
DividedParameters& ParallelLm::divided() {
  return *state_->divided;
}
const DividedParameters& ParallelLm::divided() const {
  return *state_->divided;
}
void ParallelLm::make_optimizer(const optim::Algorithm& algorithm) {
  divided().make_optimizer(algorithm);
}
optim::StepResult ParallelLm::update(const UpdateOptions& options) {
  return divided().update(options);
}
Checkpoint ParallelLm::share() {
  return divided().share();
}
void ParallelLm::load(const Checkpoint& checkpoint, const std::string& source,
                      CheckpointParts parts) {
  divided().load(checkpoint, source, parts);
}
NamedTensors ParallelLm::gather() {
  return divided().gather();
}
// The number of steps, then the share of divided().
int64_t ParallelLm::share_bytes() const {
  return static_cast<int64_t>(sizeof state_->steps) + divided().share_bytes();
}
void ParallelLm::write_share(const at::Tensor& into) const {
  const auto head = static_cast<int64_t>(sizeof state_->steps);
  if (!into.defined() || into.numel() < head)
    throw InvalidArgument("ParallelLm: write_share() takes uint8 [share_bytes()], contiguous");
  divided().write_share(into.narrow(0, head, into.numel() - head));
  std::memcpy(into.mutable_data_ptr(), &state_->steps, sizeof state_->steps);
}
at::Tensor ParallelLm::share_in(at::Tensor memory) const {
  const int64_t bytes = share_bytes();
  if (!memory.defined() || memory.numel() < bytes) memory = at::empty({bytes}, at::kByte);
  const at::Tensor share = memory.narrow(0, 0, bytes);
  write_share(share);
  return share;
}
void ParallelLm::restore_share(const at::Tensor& share) {
  const auto head = static_cast<int64_t>(sizeof state_->steps);
  if (!share.defined() || share.numel() < head)
    throw DataError("ParallelLm: restore_share(): the share is too short");
  divided().restore_share(share.narrow(0, head, share.numel() - head));
  std::memcpy(&state_->steps, share.const_data_ptr(), sizeof state_->steps);
}
void ParallelLm::count_activations() {
  state_->pipeline->count_activations();
}
const Pipeline& ParallelLm::pipeline() const {
  return *state_->pipeline;
}

}  // namespace lockstep::inline v0
