#include "lockstep/bench/step_rank.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <chrono>
#include <memory>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/bench/step_figures.h"
#include "lockstep/bench/step_models.h"
#include "lockstep/bench/turns.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/memory_use.h"
#include "lockstep/device/choose.h"
#include "lockstep/device/current.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/horovod/distributed_gradients.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep::inline v0::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSeed = 123;

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const optim::Algorithm& algorithm,
                                                        bool fused) {
  if (fused) return optim::make_fused({torch::optim::OptimizerParamGroup(parameters)}, algorithm);
  if (const auto* sgd = std::get_if<torch::optim::SGDOptions>(&algorithm))
    return std::make_unique<torch::optim::SGD>(parameters, *sgd);
  return std::make_unique<torch::optim::AdamW>(parameters,
                                               std::get<torch::optim::AdamWOptions>(algorithm));
}

int local_rank() {
  return static_cast<int>(env_int(process_env(), "LOCAL_RANK").value_or(0));
}

// A model, its data and its optimizer, averaged by one of the strategies.
class Contest {
 public:
  virtual ~Contest() = default;
  virtual StepParts step(int64_t number) = 0;
};

template <typename M>
class ModelContest final : public Contest {
 public:
  ModelContest(StepModel<M> steps, const StepWork& work)
      : model_(std::move(steps.model)),
        loss_(std::move(steps.loss)),
        data_(std::move(steps.data)),
        labels_(std::move(steps.labels)),
        in_bfloat16_(work.strategy.ends_with("-bf16")),
        in_step_(work.strategy == "in-step"),
        device_(device::choose_device(work.device, local_rank(), "--device")) {
    device::set_current(device_);
    model_->to(device_);
    data_ = data_.to(device_);
    labels_ = labels_.to(device_);
    const bool marked = work.strategy.starts_with("ddp-timeline");
    const std::string way = marked ? "ddp" : work.strategy.substr(0, work.strategy.find("-bf16"));
    if (marked) {
      timeline_ = std::make_unique<Timeline>(
          TimelineOptions{.operators = work.strategy.ends_with("-operators")});
      traced_ = !work.strategy.ends_with("-off");
    }
    const bool ddp = way == "ddp", zero = way.starts_with("zero");
    if (ddp || zero || in_step_ || way == "average" || way == "horovod" || way == "logical")
      comm_ = init({.device = work.device});
    // There are as many logical ranks as ranks, so that the figure is the cost of their tree.
    if (way == "logical") logical_.emplace(*comm_, model_.ptr(), comm_->size());
    if (ddp) ddp_.emplace(model_, *comm_);
    if (zero) {
      const int stage = way.back() - '0';
      // On a device only units are divided.
      const bool units = stage == 3 && !device_.is_cpu() && !layers_of(*model_).empty();
      auto made = std::make_unique<ZeroOptimizer>(
          *comm_, parameters_of(model_), steps.algorithm,
          ZeroOptions{.stage = stage,
                      .units = {.model = units ? model_.ptr() : nullptr},
                      .copies = work.copies});
      zero_ = made.get();
      optimizer_ = std::move(made);
    } else {
      optimizer_ = make_optimizer(model_->parameters(), steps.algorithm, work.fused);
    }
    if (way == "horovod") horovod_.emplace(parameters_of(model_), *comm_);
  }

  StepParts step(int64_t number) override {
    // A trace of a run is one of some steps.
    constexpr int64_t kTracedSteps = 50;
    if (traced_ && number % kTracedSteps == 0) timeline_->start(*comm_);
    StepParts parts;
    const auto start = Clock::now();
    std::optional<TimelineSpan> step(std::in_place, timeline_.get(), "step", number);
    std::optional<TimelineSpan> part(std::in_place, timeline_.get(), "data");
    const at::Tensor data = data_[number % kStepBatches], label = labels_[number % kStepBatches];
    const auto ready = Clock::now();
    part.emplace(timeline_.get(), "forward");
    optimizer_->zero_grad();
    const at::Tensor loss = loss_of(data, label);
    const auto forward = Clock::now();
    part.emplace(timeline_.get(), "backward");
    const ReducerTimes before = ddp_ ? ddp_->times() : ReducerTimes{};
    const ZeroTimes zero_before = zero_ != nullptr ? zero_->times() : ZeroTimes{};
    if (logical_)
      logical_->backward(loss);
    else
      loss.backward();
    const auto backward = Clock::now();
    if (logical_)
      logical_->synchronize();
    else if (horovod_)
      horovod_->synchronize();
    else if (in_step_)
      comm_->barrier();
    else if (zero_ != nullptr)
      zero_->synchronize();
    else if (comm_ && !ddp_)
      average_gradients(model_, *comm_);
    const auto averaged = Clock::now();
    part.emplace(timeline_.get(), "optimizer");
    optimizer_->step();
    (void)loss.item<double>();  // a training loop reads its loss
    part.reset();
    step.reset();
    if (timeline_) timeline_->collect();
    const auto end = Clock::now();
    parts.data = ms_between(start, ready);
    parts.forward = ms_between(ready, forward);
    parts.backward = ms_between(forward, backward);
    parts.wait = ms_between(backward, averaged);
    parts.optimizer = ms_between(averaged, end);
    if (ddp_) {
      const ReducerTimes after = ddp_->times();
      parts.averaging = (after.during - before.during) * 1e3;
      parts.wait += (after.waiting - before.waiting) * 1e3;
      parts.backward -= parts.averaging + (after.waiting - before.waiting) * 1e3;
    }
    if (zero_ != nullptr) {
      const ZeroTimes after = zero_->times();
      parts.averaging = (after.during - zero_before.during) * 1e3;
      parts.backward -= parts.averaging;
      const double gathering = (after.gathering - zero_before.gathering) * 1e3;
      parts.wait += gathering;
      parts.optimizer -= gathering;
    }
    return parts;
  }

 private:
  at::Tensor loss_of(const at::Tensor& data, const at::Tensor& label) {
    std::optional<amp::Autocast> autocast;
    if (in_bfloat16_) autocast.emplace(device_.type(), at::kBFloat16);
    if (ddp_) return loss_((*ddp_)(data), label);
    if (!logical_) return loss_(model_->forward(data), label);
    const auto compute = [&] { return std::vector<at::Tensor>{model_->forward(data)}; };
    return loss_(logical_->forward(compute)[0], label);
  }

  M model_;
  StepLoss loss_;
  at::Tensor data_, labels_;
  bool in_bfloat16_, in_step_;
  at::Device device_;
  std::optional<Communicator> comm_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::optional<DistributedGradients> horovod_;
  std::optional<LogicalRanks> logical_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  ZeroOptimizer* zero_ = nullptr;  // optimizer_, where it is one
  std::unique_ptr<Timeline> timeline_;
  bool traced_ = false;  // it is started
};

std::unique_ptr<Contest> make_contest(const StepWork& work) {
  const auto contest = [&](auto steps) -> std::unique_ptr<Contest> {
    return std::make_unique<ModelContest<decltype(steps.model)>>(std::move(steps), work);
  };
  const std::string& model = work.model;
  const std::string size = model.substr(model.find('-') + 1);
  if (model == "simple-cnn") return contest(simple_cnn_steps(work.batch));
  if (model.starts_with("resnet18")) {
    const ResNetStem stem = size == "cifar" ? ResNetStem::kCifar : ResNetStem::kImageNet;
    return contest(resnet_steps({.stem = stem, .num_classes = 10}, work.batch, 32));
  }
  if (model.starts_with("bert-")) return contest(bert_steps(bert_preset(size), 6, work.batch, 128));
  // A decoder with Llama's vocabulary of 32000.
  if (model.starts_with("lm-")) return contest(lm_steps(lm_preset(size), work.batch, 256));
  if (model == "linear") return contest(linear_steps(work.batch));
  throw InvalidArgument("there is no model '" + model + "' to measure");
}

}  // namespace

void run_step_rank(const StepWork& work) {
  at::set_num_threads(work.threads);
  const int rank = local_rank();
  torch::manual_seed(kSeed + rank);
  TurnTaker turns(work.turns, rank);
  const std::unique_ptr<Contest> contest = make_contest(work);
  int64_t number = 0;
  while (const int steps = turns.take()) {
    StepTurn turn;
    (void)contest->step(number++);  // warms the caches, which another contender has used
    for (int i = 0; i < steps; ++i) turn.steps.push_back(contest->step(number++));
    turn.pss_bytes = proportional_memory_bytes();
    turns.answer(to_line(turn));
  }
}

}  // namespace lockstep::inline v0::bench
