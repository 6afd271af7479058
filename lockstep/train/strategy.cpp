#include "lockstep/train/strategy.h"

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

Strategy::Strategy(Parts parts)
    : name_(std::move(parts.name)),
      traits_(parts.traits),
      gradients_(parts.gradients ? std::move(parts.gradients)
                                 : std::make_unique<StrategyGradients>()),
      state_(parts.state ? std::move(parts.state) : std::make_unique<StrategyState>()),
      placement_(parts.placement ? std::move(parts.placement)
                                 : std::make_unique<StrategyPlacement>()) {
  gradients_->strategy_ = state_->strategy_ = placement_->strategy_ = this;
}

void Strategy::set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm,
                      const Initial& initial) {
  model_ = std::move(model);
  comm_ = std::move(comm);
  placement_->set_up(initial);
  gradients_->bind();
  state_->bind();
}

void Strategy::bind(std::shared_ptr<torch::nn::Module> model, Communicator comm) {
  model_ = std::move(model);
  comm_ = std::move(comm);
  placement_->bind();
  gradients_->bind();
  state_->bind();
}

const std::shared_ptr<torch::nn::Module>& Strategy::model() const {
  if (!model_)
    throw InvalidArgument("strategy " + name_ + ": it has no model yet; set_up() comes first");
  return model_;
}

Communicator& Strategy::comm() {
  if (!comm_)
    throw InvalidArgument("strategy " + name_ + ": it has no ranks yet; set_up() comes first");
  return *comm_;
}

void check_step(const Strategy& strategy, const std::string& who, int64_t accumulation_steps,
                bool float16) {
  const auto refuse_accumulation = [&](const std::string& why) {
    throw InvalidArgument(who + ": gradient_accumulation_steps is " +
                          std::to_string(accumulation_steps) + ", and " + why);
  };
  if (accumulation_steps > 1 && strategy.traits().logical_ranks > 0)
    refuse_accumulation("strategy " + strategy.name() +
                        " takes the batches of several logical ranks a step; leave it at 1");
  if (!strategy.traits().divides_model) return;
  if (accumulation_steps > 1)
    refuse_accumulation(
        "the strategy divides the model, so that a step has one backward; leave it at 1, and give "
        "larger batches in more micro_batches");
  if (float16)
    throw InvalidArgument(
        who +
        ": fp16 scales the loss, and the strategy divides the model, whose gradients are there "
        "before that; take bf16");
}

Metrics update_figures(Strategy& strategy, double learning_rate) {
  Metrics figures{{"learning_rate", learning_rate}};
  if (const auto norm = strategy.state().grad_norm()) figures.emplace_back("grad_norm", *norm);
  return figures;
}

int64_t batches_per_step(const Strategy& strategy, const Communicator& comm) {
  const int64_t logical = strategy.traits().logical_ranks;
  if (logical == 0) return 1;
  if (logical % comm.size() != 0)
    throw InvalidArgument("strategy " + strategy.name() + ": " + std::to_string(comm.size()) +
                          " ranks cannot share it equally; start a power of two up to " +
                          std::to_string(logical));
  return logical / comm.size();
}

}  // namespace lockstep::inline v0
