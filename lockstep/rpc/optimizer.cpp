#include "lockstep/rpc/optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/rpc/internal/context_state.h"

namespace lockstep::inline v0::rpc {
namespace {

// Reads options one by one; those left at the end are unknown.
class Options {
 public:
  explicit Options(const OptimizerRecipe& recipe) : recipe_(recipe) {}

  template <typename Set>
  void take(const char* name, Set set) {
    known_.insert(name);
    const auto found = recipe_.options.find(name);
    if (found != recipe_.options.end()) set(found->second);
  }
  void end() const {
    for (const auto& [name, value] : recipe_.options) {
      if (known_.contains(name)) continue;
      throw InvalidArgument("the optimizer '" + recipe_.name + "' has no option '" + name +
                            "'; it has " + joined(known_));
    }
  }

 private:
  const OptimizerRecipe& recipe_;
  std::set<std::string> known_;
};

template <typename O>
void adam_options(Options& options, O& to) {
  double beta1 = std::get<0>(to.betas()), beta2 = std::get<1>(to.betas());
  options.take("lr", [&](double x) { to.lr(x); });
  options.take("beta1", [&](double x) { beta1 = x; });
  options.take("beta2", [&](double x) { beta2 = x; });
  options.take("eps", [&](double x) { to.eps(x); });
  options.take("weight_decay", [&](double x) { to.weight_decay(x); });
  options.take("amsgrad", [&](double x) { to.amsgrad(x != 0); });
  to.betas({beta1, beta2});
  options.end();
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_torch_optimizer(std::vector<at::Tensor> parameters,
                                                              const OptimizerRecipe& recipe) {
  Options options(recipe);
  if (recipe.name == "sgd") {
    torch::optim::SGDOptions to(0.01);
    options.take("lr", [&](double x) { to.lr(x); });
    options.take("momentum", [&](double x) { to.momentum(x); });
    options.take("dampening", [&](double x) { to.dampening(x); });
    options.take("weight_decay", [&](double x) { to.weight_decay(x); });
    options.take("nesterov", [&](double x) { to.nesterov(x != 0); });
    options.end();
    return std::make_unique<torch::optim::SGD>(std::move(parameters), to);
  }
  if (recipe.name == "adam") {
    torch::optim::AdamOptions to;
    adam_options(options, to);
    return std::make_unique<torch::optim::Adam>(std::move(parameters), to);
  }
  if (recipe.name == "adamw") {
    torch::optim::AdamWOptions to;
    adam_options(options, to);
    return std::make_unique<torch::optim::AdamW>(std::move(parameters), to);
  }
  if (recipe.name == "adagrad") {
    torch::optim::AdagradOptions to;
    options.take("lr", [&](double x) { to.lr(x); });
    options.take("lr_decay", [&](double x) { to.lr_decay(x); });
    options.take("weight_decay", [&](double x) { to.weight_decay(x); });
    options.take("eps", [&](double x) { to.eps(x); });
    options.end();
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters), to);
  }
  if (recipe.name == "rmsprop") {
    torch::optim::RMSpropOptions to;
    options.take("lr", [&](double x) { to.lr(x); });
    options.take("alpha", [&](double x) { to.alpha(x); });
    options.take("eps", [&](double x) { to.eps(x); });
    options.take("weight_decay", [&](double x) { to.weight_decay(x); });
    options.take("momentum", [&](double x) { to.momentum(x); });
    options.take("centered", [&](double x) { to.centered(x != 0); });
    options.end();
    return std::make_unique<torch::optim::RMSprop>(std::move(parameters), to);
  }
  throw InvalidArgument("no optimizer '" + recipe.name +
                        "'; there are sgd, adam, adamw, adagrad, rmsprop");
}

void add_optimizers(Registry& registry, OptimizerMaker maker) {
  registry.add("optimizer.make", [maker = std::move(maker), turn = std::make_shared<std::mutex>()](
                                     const std::vector<RRef<at::Tensor>>& references,
                                     const OptimizerRecipe& recipe) {
    std::vector<at::Tensor> parameters;
    for (const auto& one : references) parameters.push_back(*one.local_value());
    auto optimizer = maker(parameters, recipe);
    return std::make_shared<OwnedOptimizer>(std::move(parameters), std::move(optimizer), turn);
  });
  registry.add("optimizer.step", [](OwnedOptimizer& optimizer) { optimizer.step(); });
}

OwnedOptimizer::OwnedOptimizer(std::vector<at::Tensor> parameters,
                               std::unique_ptr<torch::optim::Optimizer> optimizer,
                               std::shared_ptr<std::mutex> turn)
    : turn_(std::move(turn)),
      parameters_(std::move(parameters)),
      optimizer_(std::move(optimizer)) {}

void OwnedOptimizer::step() {
  const auto recorder = internal::this_context().autograd;
  if (!recorder)
    throw InvalidArgument("optimizer.step is for calls inside an rpc::AutogradContext");
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(*turn_);
  std::vector<at::Tensor> before;
  const auto restore = [&] {
    for (size_t i = 0; i < before.size(); ++i) parameters_[i].mutable_grad() = before[i];
  };
  for (at::Tensor& parameter : parameters_) {
    before.push_back(parameter.grad());
    parameter.mutable_grad() = recorder->context->gradient_of(parameter);
  }
  try {
    optimizer_->step();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

DistributedOptimizer::DistributedOptimizer(Agent agent,
                                           const std::vector<RRef<at::Tensor>>& parameters,
                                           const OptimizerRecipe& recipe)
    : agent_(std::move(agent)) {
  if (parameters.empty()) throw InvalidArgument("a DistributedOptimizer needs parameters");
  std::vector<std::pair<std::string, std::vector<RRef<at::Tensor>>>> owners;
  for (const auto& one : parameters) {
    auto at = std::find_if(owners.begin(), owners.end(),
                           [&](const auto& owner) { return owner.first == one.owner(); });
    if (at == owners.end()) at = owners.insert(owners.end(), {one.owner(), {}});
    at->second.push_back(one);
  }
  for (const auto& [owner, references] : owners)
    owned_.push_back(agent_.remote<OwnedOptimizer>(owner, "optimizer.make", references, recipe));
  for (const auto& one : owned_) one.wait();
}

void DistributedOptimizer::step(const AutogradContext& context) {
  const auto& recorder = internal::this_context().autograd;
  if (!recorder || recorder->context != context.state())
    throw InvalidArgument(
        "DistributedOptimizer::step() is for the thread's own rpc::AutogradContext");
  std::vector<Future<void>> steps;
  for (const auto& one : owned_) steps.push_back(one.rpc_async("optimizer.step"));
  wait_all(steps);
}

}  // namespace lockstep::inline v0::rpc
