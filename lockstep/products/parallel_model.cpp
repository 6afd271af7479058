#include "lockstep/products/parallel_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/flat/distinct_tensors.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/parallel/pipeline/sequential_chunks.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/products/internal/model_state.h"
#include "lockstep/shard/parallelize.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void refuse_model(const std::string& what) {
  throw InvalidArgument("ParallelModel: " + what);
}

// The Sequential whose children are stages' units.
torch::nn::Sequential units_of(const std::shared_ptr<torch::nn::Module>& model,
                               const ModelPlan& plan) {
  std::shared_ptr<torch::nn::Module> found = model;
  if (!plan.units.empty()) {
    found = nullptr;
    for (const auto& item : model->named_modules(/*name_prefix=*/{}, /*include_self=*/false))
      if (item.key() == plan.units) found = item.value();
    if (!found) refuse_model("the plan's units are '" + plan.units + "', which no child is called");
  }
  const auto units = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(found);
  if (!units)
    refuse_model(
        plan.units.empty()
            ? "a pipeline cuts a torch::nn::Sequential, and the model is none; name a child that "
              "is, and that is all of its forward (ModelPlan::units)"
            : "'" + plan.units + "' is a " + found->name() + ", and no torch::nn::Sequential");
  return torch::nn::Sequential(units);
}

// A unit's multiplications for a row of the batch are in proportion to its parameters, except for
// embeddings, which are looked up.
std::vector<double> costs_of(const torch::nn::Sequential& units) {
  std::vector<double> costs;
  for (const auto& unit : units->children()) {
    double cost = 0;
    for (const auto& part : unit->modules())
      if (dynamic_cast<const torch::nn::EmbeddingImpl*>(part.get()) == nullptr)
        for (const at::Tensor& parameter : part->parameters(/*recurse=*/false))
          cost += static_cast<double>(parameter.numel());
    costs.push_back(cost);
  }
  return costs;
}

PipelineSchedule pipeline_of(const Parallelism& how) {
  // One stage has nothing to order, so any schedule will do.
  return make_schedule(how.size_of("pipe") == 1 ? "1f1b" : how.schedule,
                       {.stages = how.size_of("pipe"), .micro_batches = how.micro_batches});
}

Parallelism resolved_for(Parallelism how, const torch::nn::Sequential& units, int ranks,
                         at::Device device) {
  check_ways(how);
  how.axes = with_all_axes(how.axes, ranks);
  if (how.size_of("expert") > 1)
    refuse_model("the axis expert is for a TransformerLm with experts; put these ranks along data");
  if (how.zero == 3 && !device.is_cpu())
    refuse_model(
        "ZeRO stage 3 divides units on devices, which a model of any modules has none of; take 2");
  const int stages = how.size_of("pipe");
  if (how.micro_batches == 0) how.micro_batches = stages > 1 ? 2 * stages : 1;
  const int chunks = pipeline_of(how).all_chunks();
  if (stages == 1) {
    how.cut = {1};
    return how;
  }
  if (how.cut.empty()) how.cut = cut_by_costs(costs_of(units), chunks);
  cut_by_counts(static_cast<int>(units->size()), how.cut);
  if (static_cast<int>(how.cut.size()) != chunks)
    refuse_model("the cut has " + std::to_string(how.cut.size()) + " chunks, and the pipeline " +
                 std::to_string(chunks));
  return how;
}

ParallelModelOptions checked(const ParallelModelOptions& options) {
  if (!options.loss) refuse_model("give a loss");
  if (!options.inputs.defined() || !options.targets.defined() || options.inputs.dim() == 0 ||
      options.targets.dim() == 0 || options.inputs.size(0) != options.targets.size(0) ||
      options.inputs.size(0) == 0)
    refuse_model("give an example, inputs and targets whose dim 0 are the rows of a batch");
  return options;
}

// Refuses buffers that training changes, since no checkpoint of a divided model has them.
void check_buffers(const torch::nn::Module& model) {
  for (const auto& item : model.named_buffers())
    if (item.key().ends_with("running_mean"))
      refuse_model(
          "'" + item.key() +
          "' is a statistic that training changes, and that checkpoints of divided models do "
          "not have; take a norm without statistics");
}

// Optimizers take parameters of one type, and the model can only be gathered in one.
void check_types(const torch::nn::Module& model) {
  const NamedTensors parameters = parameters_of(model);
  if (parameters.empty()) refuse_model("the model has no parameters");
  for (const auto& [name, tensor] : parameters)
    if (tensor.scalar_type() != parameters.front().second.scalar_type())
      refuse_model("'" + name + "' is of another type than '" + parameters.front().first +
                   "'; convert the model to one, and put autocast around step() for others");
}

std::map<std::string, int> stages_of(const torch::nn::Module& model,
                                     const torch::nn::Sequential& units, const std::string& before,
                                     const Parallelism& how, const PipelineSchedule& schedule) {
  check_types(model);
  check_buffers(model);
  std::vector<int> stage_of_unit;
  for (size_t chunk = 0; chunk < how.cut.size(); ++chunk)
    stage_of_unit.insert(stage_of_unit.end(), static_cast<size_t>(how.cut[chunk]),
                         schedule.stage_of[chunk]);
  // Children have names, which need not be their numbers.
  std::map<std::string, size_t> number_of;
  if (!units.is_empty())
    for (const auto& item : units->named_children())
      number_of.emplace(item.key(), number_of.size());
  const auto stage_of_name = [&](const std::string& name) {
    const std::string rest = name.substr(before.size());
    return stage_of_unit.at(number_of.at(rest.substr(0, rest.find('.'))));
  };
  std::map<std::string, int> stages;
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : parameters_of(model)) {
    if (how.size_of("pipe") == 1) {
      stages[name] = 0;
      continue;
    }
    if (!name.starts_with(before))
      refuse_model("'" + name + "' is in no unit of '" + before.substr(0, before.size() - 1) +
                   "', so no stage of the pipeline has it; put it into one");
    stages[name] = stage_of_name(name);
    names.emplace(tensor.unsafeGetTensorImpl(), name);
  }
  if (how.size_of("pipe") == 1) return stages;
  // A tensor may have two names, or be a member of a module that does not register it.
  const auto check_place = [&](const std::string& name, const at::Tensor& tensor) {
    const auto first = names.find(tensor.unsafeGetTensorImpl());
    const int stage = stage_of_name(name);
    if (first != names.end() && stages.at(first->second) != stage)
      refuse_model(
          "'" + name + "' is '" + first->second +
          "', and they are in two stages of the pipeline; give each a tensor, or cut elsewhere");
  };
  for (const auto& [name, tensor] : parameters_of(model)) check_place(name, tensor);
  for (const auto& item : model.named_modules(/*name_prefix=*/{}, /*include_self=*/false)) {
    if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(item.value().get()))
      check_place(item.key() + ".weight", linear->weight);
    if (const auto* words = dynamic_cast<const torch::nn::EmbeddingImpl*>(item.value().get()))
      check_place(item.key() + ".weight", words->weight);
  }
  return stages;
}

bool drops_values(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::DropoutImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::Dropout2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::Dropout3dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::AlphaDropoutImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::FeatureAlphaDropoutImpl*>(&module) != nullptr;
}

}  // namespace

namespace internal {

NamedTensors parameters_once(const torch::nn::Module& model) {
  return distinct_tensors(parameters_of(model));
}

}  // namespace internal

ParallelModel::State::State(std::shared_ptr<torch::nn::Module> given, Forward given_forward,
                            Communicator given_comm, const Parallelism& given_how,
                            const ModelPlan& given_plan, const ParallelModelOptions& given_options)
    : comm(std::move(given_comm)),
      model(std::move(given)),
      forward(std::move(given_forward)),
      options(checked(given_options)),
      plan(given_plan.modules),
      units(given_how.size_of("pipe") == 1 ? torch::nn::Sequential(nullptr)
                                           : units_of(model, given_plan)),
      unit_names(given_plan.units.empty() ? "" : given_plan.units + "."),
      how(resolved_for(given_how, units, comm.size(), comm.device())),
      schedule(pipeline_of(how)),
      stage_of(stages_of(*model, units, unit_names, how, schedule)),
      mesh(comm, how.axes) {
  share_start();
  NamedShapes whole;
  for (const auto& [name, tensor] : internal::parameters_once(*model))
    whole.emplace_back(name, tensor.sizes().vec());
  for (const auto& part : model->modules()) {
    trains.emplace_back(part, part->is_training() || !model->is_training());
    drops |= drops_values(*part);
  }
  model->eval();
  const NamedTensors values = move_values();
  const Expected expected = run_whole_model();
  const auto scope = attention();
  TensorParts parts = parallelize(*model, mesh["tensor"], plan,
                                  {.probe = [this] { forward(own_inputs(options.inputs)); },
                                   .divides_rows = how.divides_rows,
                                   .context = mesh["context"]});
  check_against(expected, parts);
  restore_values(values, parts);
  set_training(true);
  std::vector<DividedParameter> own = own_parameters(parts);
  forget_other_stages();
  pipeline.emplace(mesh["pipe"], schedule, chunks(),
                   PipelineOptions{.discipline = options.discipline});
  const at::ScalarType dtype = model->parameters().front().scalar_type();
  divided.emplace(ModelDivision{
      .owner = "ParallelModel",
      .comm = comm,
      .mesh = mesh,
      .whole = std::move(whole),
      .parts = std::move(parts),
      .own = std::move(own),
      .home = [stages = stage_of](const std::string& name) -> std::map<std::string, int> {
        return {{"pipe", stages.at(name)}};
      },
      .zero = how.zero,
      .dtype = dtype,
      .module = model});
}

bool ParallelModel::State::has_style(TensorStyle style) const {
  const auto& rules = plan.rules();
  return std::any_of(rules.begin(), rules.end(),
                     [style](const TensorRule& rule) { return rule.style == style; });
}

std::unique_ptr<ContextScope> ParallelModel::State::attention() const {
  if (how.size_of("context") == 1) return nullptr;
  return std::make_unique<ContextScope>(mesh["context"], how.context_way);
}

at::Tensor ParallelModel::State::own_inputs(const at::Tensor& inputs) const {
  return has_style(TensorStyle::kRowsBegin) ? inputs : own_tokens(mesh["context"], inputs);
}
at::Tensor ParallelModel::State::own_targets(const at::Tensor& targets) const {
  return has_style(TensorStyle::kRowsEnd) ? targets : own_tokens(mesh["context"], targets);
}

double ParallelModel::State::count(const at::Tensor& targets) const {
  return options.count ? options.count(targets) : static_cast<double>(targets.numel());
}

at::Tensor ParallelModel::State::share_of_loss(const at::Tensor& outputs, const at::Tensor& own,
                                               double all) const {
  const double mine = count(own);
  if (mine == 0 || all == 0) return outputs.sum() * 0;
  const int ranks = has_style(TensorStyle::kRowsEnd) ? 1 : how.size_of("context");
  return options.loss(outputs, own) * (mine * ranks / all);
}

// Tells ranks that divide different models, or one model differently, before they divide them.
void ParallelModel::State::share_start() {
  for (const at::Tensor& parameter : model->parameters())
    if (!parameter.is_contiguous()) hooks::set_data(parameter, parameter.detach().contiguous());
  if (comm.size() == 1) return;
  std::string text = how.schedule + " " + std::to_string(how.micro_batches) + " " +
                     std::to_string(how.zero) + (how.divides_rows ? " rows " : " ") +
                     to_string(how.context_way);
  for (const MeshAxis& axis : how.axes) text += " " + axis.name + std::to_string(axis.size);
  for (const int units_of_chunk : how.cut) text += " " + std::to_string(units_of_chunk);
  for (const TensorRule& rule : plan.rules())
    text += " " + rule.modules + " " + to_string(rule.style) + std::to_string(rule.heads);
  text += " " + unit_names + (options.count ? " counts" : "");
  agree(comm, "ParallelModel",
        {{"ways", fingerprint(text)},
         {"inputs", tensor_fingerprint(options.inputs.cpu())},
         {"targets", tensor_fingerprint(options.targets.cpu())}});
  const NamedTensors parameters = parameters_of(*model);
  check_same_on_all_ranks(comm, parameters);
  NamedTensors values;
  for (const auto& [name, tensor] : parameters) values.emplace_back(name, tensor.detach());
  broadcast_tensors(comm, values);
  broadcast_tensors(comm, to_named_tensors(model->named_buffers()));
}

void ParallelModel::State::forget_other_stages() {
  const int stage = mesh.place("pipe");
  for (const auto& [name, tensor] : parameters_of(*model)) {
    if (stage_of.at(name) == stage) continue;
    tensor.set_requires_grad(false);
    hooks::set_data(tensor, at::zeros({1}, tensor.options()).expand(tensor.sizes()));
  }
}

std::vector<DividedParameter> ParallelModel::State::own_parameters(const TensorParts& parts) const {
  const int stage = mesh.place("pipe");
  const PlacedParameters places = parts.places();
  std::vector<DividedParameter> own;
  for (const auto& [name, tensor] : internal::parameters_once(*model)) {
    if (stage_of.at(name) != stage) continue;
    DividedParameter& part = own.emplace_back();
    part.name = name;
    part.tensor = tensor;
    part.slice = parts.slice(name);
    part.shape = places.at(name).shape;
  }
  return own;
}

std::vector<PipelineChunk> ParallelModel::State::chunks() {
  if (!has_stages()) {
    PipelineChunk whole;
    whole.forward = [this](const at::Tensor& inputs, const MicroBatch&) { return forward(inputs); };
    return {whole};
  }
  auto all = sequential_chunks(units, how.cut, between, schedule, mesh.place("pipe"));
  for (PipelineChunk& chunk : all)
    chunk.origin = "a model of " + std::to_string(units->size()) + " units";
  return all;
}

PipelineBatch ParallelModel::State::batch_of(const at::Tensor& inputs, const at::Tensor& targets,
                                             double scale) {
  if (!inputs.defined() || !targets.defined() || inputs.dim() == 0 || targets.dim() == 0 ||
      inputs.size(0) == 0 || inputs.size(0) != targets.size(0))
    refuse_model("a batch is inputs and targets with as many rows, 1 or more");
  const Communicator row = mesh.over({"pipe", "context", "tensor"});
  if (row.size() > 1)
    agree(row, "row",
          {{"inputs", tensor_fingerprint(inputs)}, {"targets", tensor_fingerprint(targets)}});
  PipelineBatch batch;
  const int64_t rows = inputs.size(0),
                count_of = std::min<int64_t>(rows, static_cast<int64_t>(how.micro_batches));
  for (int64_t i = 0; i < count_of; ++i)
    batch.rows.push_back(rows * (i + 1) / count_of - rows * i / count_of);
  batch.input = [own = device::copy_to(own_inputs(inputs), comm.device())](
                    const MicroBatch& micro) { return own.narrow(0, micro.first_row, micro.rows); };
  batch.loss = [this, own = device::copy_to(own_targets(targets), comm.device()),
                all = count(targets), scale](const at::Tensor& outputs, const MicroBatch& micro) {
    return share_of_loss(outputs, own.narrow(0, micro.first_row, micro.rows), all) * scale;
  };
  return batch;
}

void ParallelModel::State::set_training(bool training) {
  if (!training) return model->eval();
  for (const auto& [part, trains_here] : trains) part->train(trains_here);
}

double ParallelModel::State::mean_over_context(double loss) const {
  Communicator& context = mesh["context"];
  if (context.size() == 1) return loss;
  const at::Tensor mean = at::full({1}, loss, at::TensorOptions(at::kDouble).device(comm.device()));
  context.all_reduce(mean, ReduceOp::kAvg);
  return mean.item<double>();
}

ParallelModel::ParallelModel(std::shared_ptr<torch::nn::Module> model, Forward forward,
                             Communicator comm, const Parallelism& how, const ModelPlan& plan,
                             const ParallelModelOptions& options)
    : state_(std::make_unique<State>(std::move(model), std::move(forward), std::move(comm), how,
                                     plan, options)) {}
ParallelModel::ParallelModel(ParallelModel&&) noexcept = default;
ParallelModel& ParallelModel::operator=(ParallelModel&&) noexcept = default;
ParallelModel::~ParallelModel() = default;

double ParallelModel::step(const at::Tensor& inputs, const at::Tensor& targets, double scale) {
  State& state = *state_;
  if (!(scale >= 0) || std::isinf(scale))
    refuse_model("scale is " + std::to_string(scale) + "; give a number from 0 on");
  const auto scope = state.attention();
  const PipelineBatch batch = state.batch_of(inputs, targets, scale);
  if (state.drops && state.how.size_of("tensor") > 1)
    agree(state.mesh["tensor"], "dropout", {{"random", random_fingerprint()}});
  state.set_training(true);
  const double loss = state.mean_over_context(state.pipeline->step(batch));
  return scale == 0 ? 0 : loss / scale;
}

double ParallelModel::evaluate(const at::Tensor& inputs, const at::Tensor& targets) {
  State& state = *state_;
  const auto scope = state.attention();
  const PipelineBatch batch = state.batch_of(inputs, targets, 1);
  state.set_training(false);
  const double loss = state.mean_over_context(state.pipeline->evaluate(batch));
  state.set_training(true);
  return loss;
}

const Parallelism& ParallelModel::parallelism() const {
  return state_->how;
}
const Mesh& ParallelModel::mesh() const {
  return state_->mesh;
}
Communicator ParallelModel::rows() const {
  return state_->mesh["data"];
}
const Pipeline& ParallelModel::pipeline() const {
  return *state_->pipeline;
}
DividedParameters& ParallelModel::divided() {
  return *state_->divided;
}

std::string ParallelModel::str() const {
  const State& state = *state_;
  std::ostringstream out;
  out << state.mesh.str();
  int first = 0;
  for (size_t chunk = 0; state.has_stages() && chunk < state.how.cut.size(); ++chunk) {
    const int behind = first + state.how.cut[chunk];
    out << "\n  stage " << state.schedule.stage_of[chunk] << ": units " << first;
    if (behind - first > 1) out << " to " << behind - 1;
    first = behind;
  }
  int64_t mine = 0, all = 0;
  for (const DividedParameter& part : state.divided->own()) mine += part.tensor.numel();
  for (const auto& [name, shape] : state.divided->whole_shapes()) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    all += elements;
  }
  out << "\n  rank " << state.comm.rank() << " has " << mine << " of " << all << " parameters";
  return out.str();
}

}  // namespace lockstep::inline v0
