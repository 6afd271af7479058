#include "lockstep/gpu_check/contest.h"

#include <torch/utils.h>

#include <functional>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/bench/step_models.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/current.h"
#include "lockstep/gpu_check/parts.h"
#include "lockstep/graph/graphed_step.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/parallel/ddp/ddp.h"

namespace lockstep::inline v0::gpu_check {
namespace {

constexpr int64_t kClasses = 10;
using bench::kStepBatches;

template <typename M>
class ModelContest final : public Contest {
 public:
  // Its tensors are on the device.
  ModelContest(bench::StepModel<M> steps, bool half, Communicator* comm)
      : model_(std::move(steps.model)),
        loss_(std::move(steps.loss)),
        data_(std::move(steps.data)),
        labels_(std::move(steps.labels)),
        half_(half) {
    if (comm != nullptr) ddp_.emplace(model_, *comm);
    optimizer_ = optim::make_fused({torch::optim::OptimizerParamGroup(model_->parameters())},
                                   steps.algorithm);
  }

  // Steps are a graph from now on.
  void capture(c10::Device device) {
    graph_.emplace(GraphedStepOptions{.device = device},
                   [this](const at::Tensor& data, const at::Tensor& label) { take(data, label); });
    while (graph_->captured() == 0) step();
  }

  void step() override {
    const at::Tensor data = data_[number_ % kStepBatches], label = labels_[number_ % kStepBatches];
    ++number_;
    graph_ ? static_cast<void>((*graph_)(data, label)) : take(data, label);
  }

 private:
  void take(const at::Tensor& data, const at::Tensor& label) {
    optimizer_->zero_grad();
    loss_of(data, label).backward();
    optimizer_->step();
  }
  at::Tensor loss_of(const at::Tensor& data, const at::Tensor& label) {
    std::optional<amp::Autocast> autocast;
    if (half_) autocast.emplace(at::kCUDA, at::kBFloat16);
    return loss_(ddp_ ? (*ddp_)(data) : model_->forward(data), label);
  }

  M model_;
  bench::StepLoss loss_;
  at::Tensor data_, labels_;
  bool half_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t number_ = 0;
  std::optional<GraphedStep<std::function<void(const at::Tensor&, const at::Tensor&)>>> graph_;
};

LmConfig lm_config(const StepCase& one) {
  LmConfig config;
  config.vocab_size = one.vocabulary;
  config.hidden_size = one.width;
  config.intermediate_size = one.inner;
  config.num_hidden_layers = one.layers;
  config.num_attention_heads = one.heads;
  config.max_position_embeddings = one.length;
  config.tie_word_embeddings = true;
  return config;
}

BertConfig bert_config(const StepCase& one) {
  BertConfig config;
  config.vocab_size = one.vocabulary;
  config.hidden_size = one.width;
  config.intermediate_size = one.inner;
  config.num_hidden_layers = one.layers;
  config.num_attention_heads = one.heads;
  return config;
}

}  // namespace

std::vector<StepCase> step_cases(bool small) {
  if (small)
    return {{"SimpleCnn 4", "simple-cnn", 4, 28},
            {"ResNet-50 2", "resnet-50", 2, 32},
            {"BERT 2 x 8", "bert", 2, 8, 2, 32, 2, 64, 100, true},
            {"LM bf16 2 x 8", "lm", 2, 8, 2, 32, 2, 64, 100, true}};
  const auto bert = [](const char* name, int64_t batch) {
    return StepCase{name, "bert", batch, 128, 12, 768, 12, 3072, 30522, true};
  };
  const auto lm = [](const char* name, int64_t batch, int64_t length) {
    return StepCase{name, "lm", batch, length, 12, 768, 12, 2048, 50257, true};
  };
  return {{"SimpleCnn 64", "simple-cnn", 64, 28},
          {"BERT mini 32 x 128", "bert", 32, 128, 4, 256, 4, 1024, 30522, false},
          lm("LM 124M bf16 16 x 1024", 16, 1024),
          lm("LM 124M bf16 4 x 256", 4, 256),
          bert("BERT base bf16 64 x 128", 64),
          bert("BERT base bf16 8 x 128", 8),
          {"ResNet-50 bf16 channels_last 256", "resnet-50", 256, 224, 0, 0, 0, 0, 0, true}};
}

double flop_of_step(const StepCase& one) {
  const auto of = [](int64_t n) { return static_cast<double>(n); };
  if (one.kind == "resnet-50") {
    // 4.09e9 multiplications and additions a picture of 224 x 224, by the areas of the layers.
    const double area = of(one.length) * of(one.length) / (224.0 * 224.0);
    return 3 * 2 * 4.09e9 * area * of(one.batch);
  }
  if (!one.has_tokens()) return 0;
  const bool lm = one.kind == "lm";
  // The weights of products; SwiGLU has three matrices. A causal product needs half of the scores.
  const double layer =
      4 * of(one.width) * of(one.width) + (lm ? 3 : 2) * of(one.width) * of(one.inner);
  const double weights = of(one.layers) * layer + (lm ? of(one.vocabulary) * of(one.width) : 0);
  const double scores = (lm ? 6 : 12) * of(one.layers) * of(one.width) * of(one.length);
  return of(one.batch * one.length) * (6 * weights + scores);
}

std::unique_ptr<Contest> make_contest(const StepCase& one, c10::Device device, Communicator* comm,
                                      Way way) {
  torch::manual_seed(123);
  const auto contest = [&](auto steps) -> std::unique_ptr<Contest> {
    steps.model->to(device);
    steps.data = steps.data.to(device);
    steps.labels = steps.labels.to(device);
    auto made =
        std::make_unique<ModelContest<decltype(steps.model)>>(std::move(steps), one.half, comm);
    if (way == Way::kGraph) made->capture(device);
    return made;
  };
  if (one.kind == "simple-cnn") return contest(bench::simple_cnn_steps(one.batch));
  if (one.kind == "resnet-50") {
    auto steps = bench::resnet_steps({.depth = 50, .num_classes = kClasses}, one.batch, one.length);
    for (at::Tensor& parameter : steps.model->parameters()) {
      if (parameter.dim() == 4)
        parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
    // A batch of it is a view, in the order of memory of channels_last.
    steps.data = steps.data.permute({0, 1, 3, 4, 2}).contiguous().permute({0, 1, 4, 2, 3});
    return contest(std::move(steps));
  }
  if (one.kind == "bert")
    return contest(bench::bert_steps(bert_config(one), kClasses, one.batch, one.length));
  if (one.kind == "lm") return contest(bench::lm_steps(lm_config(one), one.batch, one.length));
  throw InvalidArgument("there is no model '" + one.kind + "' to time");
}

double ms_per_step(Contest& contest, c10::Device device, int steps) {
  device::synchronize(device);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) contest.step();
  device::synchronize(device);
  return seconds_since(start) * 1e3 / steps;
}

}  // namespace lockstep::inline v0::gpu_check
