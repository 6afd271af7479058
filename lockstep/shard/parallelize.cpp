#include "lockstep/shard/parallelize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/hooks/division.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/parallel/context/token_part.h"
#include "lockstep/parallel/tensor/tensor_part.h"
#include "lockstep/shard/internal/divided_layers.h"

namespace lockstep::inline v0 {
namespace {

using internal::Division;

// A module that is divided.
struct Planned {
  std::string name;
  TensorStyle style;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<PartSlice> slices;  // of its weight, one a part
};

// What a Linear or an Embedding computes with: its member, which may be another's, under whose name it is then registered.
const at::Tensor& weight_of(const torch::nn::Module& module) {
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module))
    return linear->weight;
  return dynamic_cast<const torch::nn::EmbeddingImpl&>(module).weight;
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw InvalidArgument("parallelize: '" + name + "' " + why);
}

std::vector<PartSlice> slices_of(const TensorPlan& plan, const std::string& name,
                                 const at::Tensor& parameter, int64_t parts) {
  std::vector<PartSlice> slices;
  for (int64_t part = 0; part < parts; ++part)
    slices.push_back(plan.slice(name, parameter.sizes().vec(), part, parts));
  return slices;
}

void check_kind(const std::string& name, const TensorRule& rule, const torch::nn::Module& module,
                int64_t parts) {
  if (rule.style == TensorStyle::kExperts)
    refuse(name, "is of style experts, which exchange rows with others; make the model of a part");
  const bool is_linear = dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr;
  const bool is_embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr;
  if (!is_linear && !(is_embedding && rule.style == TensorStyle::kVocabulary))
    refuse(name, "is a " + module.name() + ", which style " + to_string(rule.style) +
                     " does not divide; that is for a torch::nn::Linear child" +
                     (rule.style == TensorStyle::kVocabulary ? ", or an Embedding" : ""));
  if (const std::string why = hooks::cannot_hook(module); !why.empty()) refuse(name, why);
  if (const auto* words = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
      words != nullptr && (words->options.scale_grad_by_freq() || words->options.sparse()))
    refuse(name, "scales its gradients by frequency, or has sparse ones, which its parts cannot");
  if (rule.style == TensorStyle::kHeads && rule.heads < parts)
    refuse(name, "has " + std::to_string(rule.heads) + " heads for " + std::to_string(parts) +
                     " parts; take a number of parts that divides them");
}

// Whose rows are divided, not its parameters.
struct OfRows {
  std::string name;
  TensorStyle style;
  std::shared_ptr<torch::nn::Module> module;
};

// In the model's order. Throws InvalidArgument for what cannot be hooked.
std::vector<OfRows> modules_of_rows(const torch::nn::Module& model, const TensorPlan& plan) {
  std::vector<OfRows> all;
  std::map<const torch::nn::Module*, TensorStyle> seen;
  for (const auto& item : model.named_modules(/*name_prefix=*/{}, /*include_self=*/false)) {
    const TensorRule* const rule = plan.rule_of(item.key());
    if (rule == nullptr || !is_of_rows(rule->style)) continue;
    const TensorStyle style = rule->style;
    if (const auto before = seen.find(item.value().get()); before != seen.end()) {
      if (before->second == style) continue;
      refuse(item.key(), "has another name too, by which it has another style; give both one");
    }
    all.push_back({item.key(), style, item.value()});
    seen.emplace(item.value().get(), style);
    if (style == TensorStyle::kRows) continue;  // it works on what it is given
    const torch::nn::Module& module = *item.value();
    const bool is_embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr;
    const bool fits = style == TensorStyle::kPositions
                          ? is_embedding
                          : (is_embedding && style == TensorStyle::kRowsBegin) ||
                                dynamic_cast<const torch::nn::LayerNormImpl*>(&module) != nullptr ||
                                dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr;
    if (!fits)
      refuse(item.key(), "is a " + module.name() + ", which style " + to_string(style) +
                             " is not for; it is for a torch::nn::" +
                             (style == TensorStyle::kPositions   ? "Embedding"
                              : style == TensorStyle::kRowsBegin ? "LayerNorm, Linear or Embedding"
                                                                 : "LayerNorm or Linear") +
                             " child");
    if (const std::string why = hooks::cannot_hook(module); !why.empty()) refuse(item.key(), why);
  }
  return all;
}

// Products whose columns are divided stand where rows are: with divides_rows they put a part's own rows together.
void check_places(const torch::nn::Module& model, const TensorPlan& plan) {
  std::string begin, end;
  bool has_begun = true;
  for (const TensorRule& rule : plan.rules()) has_begun &= rule.style != TensorStyle::kRowsBegin;
  for (const auto& item : model.named_modules(/*name_prefix=*/{}, /*include_self=*/false)) {
    const TensorRule* const rule = plan.rule_of(item.key());
    if (rule == nullptr) continue;
    const TensorStyle style = rule->style;
    if (style == TensorStyle::kRowsBegin) has_begun = true;
    if (style == TensorStyle::kRowsEnd) end = item.key();
    const bool is_product =
        style == TensorStyle::kColumn || style == TensorStyle::kHeads || style == TensorStyle::kRow;
    if (!is_product || (has_begun && end.empty())) continue;
    refuse(item.key(),
           "(" + std::string(to_string(style)) + ") stands " +
               (end.empty() ? "before rows begin" : "behind '" + end + "', where rows end") +
               ", and works on all rows; leave it whole, or divide no rows");
  }
}

// In the model's order. Throws InvalidArgument for what cannot be divided.
std::vector<Planned> planned_modules(const torch::nn::Module& model, const TensorPlan& plan,
                                     int64_t parts) {
  std::vector<Planned> all;
  if (dynamic_cast<const hooks::Divisible*>(&model) != nullptr) return all;
  std::map<const torch::nn::Module*, std::string> seen;
  for (const auto& item : model.named_modules(/*name_prefix=*/{}, /*include_self=*/false)) {
    const TensorRule* const rule = plan.rule_of(item.key());
    if (rule == nullptr || rule->style == TensorStyle::kWhole || is_of_rows(rule->style)) continue;
    check_kind(item.key(), *rule, *item.value(), parts);
    if (const auto [before, is_new] = seen.emplace(item.value().get(), item.key()); !is_new)
      refuse(item.key(), "is '" + before->second + "' too; a divided module has one place");
    all.push_back({item.key(), rule->style, item.value(),
                   slices_of(plan, item.key() + ".weight", weight_of(*item.value()), parts)});
  }
  return all;
}

// A parameter of several names has the same slices by each; modules that share one are not of one kind, for their hooks
// would be those of both.
void check_shared(const NamedTensors& parameters, const std::vector<Planned>& modules,
                  const TensorPlan& plan, int64_t parts) {
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : parameters) {
    const auto [before, is_new] = names.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new &&
        slices_of(plan, before->second, tensor, parts) != slices_of(plan, name, tensor, parts))
      refuse(name, "shares its memory with '" + before->second + "', which is divided otherwise");
  }
  std::map<const c10::TensorImpl*, const Planned*> owners;
  for (const Planned& one : modules) {
    const at::Tensor& weight = weight_of(*one.module);
    const auto owner = names.find(weight.unsafeGetTensorImpl());
    if (owner == names.end()) refuse(one.name, "has a weight that is no parameter of the model's");
    if (slices_of(plan, owner->second, weight, parts) != one.slices)
      refuse(one.name, "computes with '" + owner->second + "', which is divided otherwise");
    const auto [before, is_new] = owners.emplace(weight.unsafeGetTensorImpl(), &one);
    if (!is_new && typeid(*before->second->module) == typeid(*one.module))
      refuse(one.name, "shares its weight with '" + before->second->name +
                           "', a module of its kind; give each a weight, or leave them whole");
  }
}

void meet(Communicator comm, const TensorPlan& plan, const NamedTensors& parameters,
          bool divides_rows) {
  std::string text = divides_rows ? "rows\n" : "";
  for (const TensorRule& rule : plan.rules())
    text += rule.modules + ' ' + to_string(rule.style) + ' ' + std::to_string(rule.heads) + '\n';
  agree(comm, "parallelize", {{"plan", fingerprint(text)}});
  check_same_on_all_ranks(comm, parameters);
}

// Of rank 0's values this rank's slices, or those of `given`.
void take_slices(torch::nn::Module& model, Communicator comm, const TensorParts& parts,
                 const ParameterParts& given) {
  const at::NoGradGuard no_grad;
  std::set<const c10::TensorImpl*> done;
  const NamedTensors parameters = parameters_of(model);
  for (const auto& [name, parameter] : parameters) {
    if (!done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const PartSlice own = parts.slice(name);
    at::Tensor values = parameter.detach().contiguous();
    if (!given) comm.broadcast(values, 0);
    if (!own.whole()) {
      const at::Tensor slice = values.narrow(own.dim, own.begin, own.end - own.begin);
      values = given ? at::empty(slice.sizes(), slice.options()) : slice.clone();
    }
    hooks::set_data(parameter, values.contiguous());
    parameter.mutable_grad() = at::Tensor();
  }
  if (given)
    parts.fill(parameters, given);
  else
    broadcast_tensors(comm, to_named_tensors(model.named_buffers()));
}

// A model that computes as a part by itself divides what it divides.
void check_divisible(const hooks::Divisible& divisible, const TensorPlan& plan,
                     const TensorParts& parts, const NamedShapes& shapes) {
  for (const auto& [name, shape] : shapes) {
    const int64_t dim = parts.slice(name).dim, wanted = divisible.divided_dim(name);
    const TensorRule* const rule = plan.rule_of(name.substr(0, name.rfind('.')));
    const bool is_one_head = rule != nullptr && rule->style == TensorStyle::kHeads && dim < 0;
    if (dim == wanted || is_one_head) continue;
    const auto text = [](int64_t of) {
      return of < 0 ? std::string("whole on each part") : "divided along dim " + std::to_string(of);
    };
    refuse(name, "is " + text(dim) + " by the plan, and " + text(wanted) +
                     " in a model of this kind; take the plan that it has (lm_tensor_plan())");
  }
}

// Of a model that computes as a part by itself.
void become_part(torch::nn::Module& model, hooks::Divisible& divisible, const Communicator& comm,
                 const TensorPlan& plan, const ParallelizeOptions& options) {
  std::set<int64_t> fewer;
  for (const TensorRule& rule : plan.rules())
    if (rule.style == TensorStyle::kHeads && rule.heads < comm.size()) fewer.insert(rule.heads);
  for (const auto& module : model.modules())
    if (auto* const linear = dynamic_cast<torch::nn::LinearImpl*>(module.get()))
      linear->options.in_features(linear->weight.size(1)).out_features(linear->weight.size(0));
  divisible.take_part(tensor_part(comm, options.divides_rows, {fewer.begin(), fewer.end()}));
}

// `shared`: parameters that have the hook.
void share(const at::Tensor& parameter, const Division& division,
           std::set<const c10::TensorImpl*>& shared) {
  if (shared.insert(parameter.unsafeGetTensorImpl()).second) division.rows().share(parameter);
}

void divide(const Planned& one, const std::shared_ptr<Division>& division,
            std::set<const c10::TensorImpl*>& shared) {
  if (auto* const linear = dynamic_cast<torch::nn::LinearImpl*>(one.module.get())) {
    linear->options.in_features(linear->weight.size(1)).out_features(linear->weight.size(0));
    if (one.style == TensorStyle::kRow && linear->bias.defined())
      share(linear->bias, *division, shared);
    hooks::add_hook(*linear, internal::divided_linear(division, one.name, one.style, one.slices));
    return;
  }
  auto& words = dynamic_cast<torch::nn::EmbeddingImpl&>(*one.module);
  const PartSlice& own = one.slices[static_cast<size_t>(division->comm().rank())];
  auto& options = words.options;
  if (auto padding = options.padding_idx()) {
    if (*padding < 0) *padding += one.slices.back().end;
    const bool is_here = *padding >= own.begin && *padding < own.end;
    options.padding_idx(is_here ? std::optional<int64_t>(*padding - own.begin) : std::nullopt);
  }
  options.num_embeddings(own.end - own.begin);
  hooks::add_hook(words, internal::divided_embedding(division, one.name, one.slices));
}

void divide_rows(const OfRows& one, const std::shared_ptr<Division>& division,
                 std::set<const c10::TensorImpl*>& shared) {
  // Where rows begin, the module still works on all of them.
  if (one.style != TensorStyle::kRowsBegin)
    for (const at::Tensor& parameter : one.module->parameters(/*recurse=*/false))
      share(parameter, *division, shared);
  if (auto hook = internal::divided_row_layer(division, one.style))
    hooks::add_hook(*one.module, std::move(hook));
}

void run_probe(const std::function<void()>& probe, const Division& division) {
  const at::NoGradGuard no_grad;
  try {
    probe();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const std::string behind = division.open().empty()
                                   ? ""
                                   : " behind '" + division.open() +
                                         "', whose columns each part has a share of: the line "
                                         "there that says how many columns or heads there are has "
                                         "to take what it is given "
                                         "(-1 in a view)";
    throw InvalidArgument("parallelize: the model's forward fails" + behind + ": " +
                          text.substr(0, text.find('\n')));
  }
  if (!division.open().empty())
    throw InvalidArgument("parallelize: no module of style row has put together what '" +
                          division.open() +
                          "' gave, a share of the columns; divide the product behind it by style "
                          "row, or leave both whole");
}

}  // namespace

TensorParts parallelize(torch::nn::Module& model, const Communicator& comm, const TensorPlan& plan,
                        const ParallelizeOptions& options) {
  const NamedTensors parameters = parameters_of(model);
  NamedShapes shapes;
  for (const auto& [name, tensor] : parameters) shapes.emplace_back(name, tensor.sizes().vec());
  const std::vector<Planned> modules = planned_modules(model, plan, comm.size());
  const std::vector<OfRows> of_rows = modules_of_rows(model, plan);
  auto* const divisible = dynamic_cast<hooks::Divisible*>(&model);
  if (options.divides_rows && comm.size() > 1 && divisible == nullptr) check_places(model, plan);
  TensorParts parts(comm, plan, shapes);
  if (divisible != nullptr && comm.size() > 1) check_divisible(*divisible, plan, parts, shapes);
  check_shared(parameters, modules, plan, comm.size());
  if (comm.size() > 1) {
    meet(comm, plan, parameters, options.divides_rows);
    take_slices(model, comm, parts, options.values);
  } else if (options.values) {
    parts.fill(parameters, options.values);
  }
  if (divisible != nullptr) {
    if (comm.size() > 1) become_part(model, *divisible, comm, plan, options);
    if (options.context) divisible->take_tokens(token_part(*options.context));
    if (options.probe) run_probe(options.probe, Division(comm, {comm, false, {}, plan}));
    return parts;
  }
  const auto division = std::make_shared<Division>(
      comm, internal::DividedRows(comm, options.divides_rows, options.context, plan));
  std::set<const c10::TensorImpl*> shared;
  if (comm.size() > 1)
    for (const Planned& one : modules) divide(one, division, shared);
  for (const OfRows& one : of_rows) divide_rows(one, division, shared);
  if (options.probe) run_probe(options.probe, *division);
  return parts;
}

}  // namespace lockstep::inline v0
