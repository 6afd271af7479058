// A pipeline by remote calls: ResNet-50 cut in two, a half a process; the master splits a batch,
// sends the parts through both halves without waiting, and trains by a context and a
// DistributedOptimizer. Times a step for several numbers of parts and draws them; every loss is
// that of one process, bit for bit. Runs on 3 ranks
// of its own, the master and two halves, when started by hand.
//   pipeline_resnet [FILE.svg [SIDE]]
// FILE.svg: the picture (pipeline_resnet.svg); SIDE: of the images, in pixels (32).
// After Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
// Parallelism" (2018).
#include <ATen/Functions.h>
#include <lockstep/model/resnet.h>
#include <lockstep/report/line_chart.h>
#include <lockstep/rpc/optimizer.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../on_ranks.h"
#include "../usage.h"

namespace {

namespace rpc = lockstep::rpc;

// A row of 128 classes has a multiple of 64 bytes: gradients of a part begin where memory is aligned,
// as what is received does. A product's bits may hang on that.
constexpr int64_t kBatch = 8, kClasses = 128;
constexpr int kSteps = 3;  // for each number of parts; the first one is not timed
constexpr double kRate = 0.001;

// With GroupNorm (Wu and He, 2018) what is computed does not depend on how a batch is cut.
lockstep::ResNet make_model() {
  torch::manual_seed(1);
  return lockstep::ResNet(lockstep::ResNetOptions{
      .depth = 50, .num_classes = kClasses, .norm = [](int64_t channels) {
        return torch::nn::AnyModule(
            torch::nn::GroupNorm(torch::nn::GroupNormOptions(32, channels)));
      }});
}

// One half of the model: the layers up to the second block, or those behind it.
class Half {
 public:
  explicit Half(bool first) : first_(first) {
    const lockstep::ResNet whole = make_model();
    for (const char* name : first ? std::array{"conv1", "bn1", "layer1", "layer2"}
                                  : std::array{"layer3", "layer4", "fc", ""})
      if (*name) layers_[name] = whole->named_children()[name];  // the others go again
  }
  // [n, 3, side, side] -> [n, 512, side / 8, side / 8] -> [n, kClasses].
  at::Tensor forward(const at::Tensor& x) {
    using namespace torch::nn;
    if (!first_) {
      const at::Tensor y =
          layer<SequentialImpl>("layer4")->forward(layer<SequentialImpl>("layer3")->forward(x));
      return layer<LinearImpl>("fc")->forward(at::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
    }
    const at::Tensor y =
        layer<GroupNormImpl>("bn1")->forward(layer<Conv2dImpl>("conv1")->forward(x)).relu_();
    return layer<SequentialImpl>("layer2")->forward(
        layer<SequentialImpl>("layer1")->forward(at::max_pool2d(y, 3, 2, 1)));
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, layer] : layers_)
      for (const at::Tensor& one : layer->parameters()) all.push_back(one);
    return all;
  }

 private:
  template <typename Module>
  Module* layer(const char* name) {
    return layers_.at(name)->as<Module>();
  }

  bool first_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> layers_;
};

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("make_half", [](bool first) { return std::make_shared<Half>(first); });
  registry.add("forward", &Half::forward);
  // Of what the half before has computed, and keeps: the master never sees it.
  registry.add("forward_of", [](Half& half, const rpc::RRef<at::Tensor>& x) {
    return half.forward(x.to_here());
  });
  registry.add("parameters", [](Half& half) {
    std::vector<rpc::RRef<at::Tensor>> all;
    for (const at::Tensor& one : half.parameters())
      all.push_back(rpc::Agent::current().own(std::make_shared<at::Tensor>(one)));
    return all;
  });
  rpc::add_optimizers(registry);
  return registry;
}

struct Batch {
  explicit Batch(int64_t side) {
    torch::manual_seed(2);
    images = at::randn({kBatch, 3, side, side});
    labels = at::randint(kClasses, {kBatch}, at::kLong);
  }
  at::Tensor images, labels;
};

class Split {
 public:
  explicit Split(const rpc::Agent& agent)
      : agent_(agent),
        first_(agent.remote<Half>("half0", "make_half", true)),
        second_(agent.remote<Half>("half1", "make_half", false)),
        optimizer_(agent, parameters(), {.name = "sgd", .options = {{"lr", kRate}}}) {}

  double step(const Batch& batch, int64_t parts) {
    // A half computes its parts one after another, so that the other half begins after the first.
    const auto to_first = agent_.to("half0", {.order = 1}),
               to_second = agent_.to("half1", {.order = 1});
    rpc::AutogradContext context(agent_);
    std::vector<rpc::Future<at::Tensor>> outputs;
    for (const at::Tensor& images : batch.images.chunk(parts)) {
      const auto between = to_first.remote<at::Tensor>("forward", first_, images);
      outputs.push_back(to_second.rpc_async<at::Tensor>("forward_of", second_, between));
    }
    std::vector<at::Tensor> logits;
    for (const auto& one : outputs) logits.push_back(one.get());
    const at::Tensor loss = at::cross_entropy_loss(at::cat(logits), batch.labels);
    context.backward({loss});
    optimizer_.step(context);
    return loss.item<double>();
  }

 private:
  std::vector<rpc::RRef<at::Tensor>> parameters() const {
    auto all = first_.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters");
    for (const auto& one : second_.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters"))
      all.push_back(one);
    return all;
  }

  rpc::Agent agent_;
  rpc::RRef<Half> first_, second_;
  rpc::DistributedOptimizer optimizer_;
};

class Whole {
 public:
  double step(const Batch& batch, int64_t parts) {
    optimizer_.zero_grad();
    std::vector<at::Tensor> logits;
    for (const at::Tensor& images : batch.images.chunk(parts))
      logits.push_back(model_->forward(images));
    const at::Tensor loss = at::cross_entropy_loss(at::cat(logits), batch.labels);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

 private:
  lockstep::ResNet model_ = make_model();
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(kRate)};
};

struct Timed {
  std::vector<double> losses;
  double seconds = 0;  // of the fastest step but the first
};
template <typename Model>
Timed time_steps(Model& model, const Batch& batch, int64_t parts) {
  Timed timed;
  for (int i = 0; i < kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    timed.losses.push_back(model.step(batch, parts));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0) timed.seconds = timed.seconds == 0 ? seconds : std::min(timed.seconds, seconds);
  }
  return timed;
}

void master(const rpc::Agent& agent, const std::string& picture, int64_t side) {
  const Batch batch(side);
  Split split(agent);
  Whole whole;
  lockstep::Series by_two{.name = "two processes", .x = {}, .y = {}},
      by_one{.name = "one process", .x = {}, .y = {}, .dashed = true};
  bool same = true;
  for (const int64_t parts : {1, 2, 4, 8}) {
    const Timed two = time_steps(split, batch, parts), one = time_steps(whole, batch, parts);
    same = same && two.losses == one.losses;
    for (auto& [series, timed] : {std::pair{&by_two, &two}, std::pair{&by_one, &one}}) {
      series->x.push_back(static_cast<double>(parts));
      series->y.push_back(timed->seconds);
    }
    std::printf("%lld x %lld images: loss %.4f, %.3f s a step; one process %.3f s\n",
                static_cast<long long>(parts), static_cast<long long>(kBatch / parts),
                two.losses.back(), two.seconds, one.seconds);
  }
  std::ofstream(picture) << lockstep::svg_line_chart(
      {{.title = "ResNet-50 in two halves by remote calls",
        .x_label = "micro-batches",
        .y_label = "seconds a step",
        .series = {by_two, by_one},
        .x_integers = true}});
  std::printf("the losses are %s; drawn in %s\n",
              same ? "those of one process, bit for bit" : "NOT THOSE OF ONE PROCESS",
              picture.c_str());
}

void example(lockstep::Communicator& comm, const std::string& picture, int64_t side) {
  if (comm.size() < 3)
    throw lockstep::InvalidArgument("pipeline_resnet needs 3 ranks: a master and two halves");
  const int rank = comm.rank();
  rpc::Agent agent = rpc::init(comm, functions(),
                               {.name = rank == 0 ? "master" : "half" + std::to_string(rank - 1)});
  if (rank == 0) master(agent, picture, side);
  agent.shutdown(std::chrono::minutes(10));  // the halves serve until the master comes here, too
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "pipeline_resnet [FILE.svg [SIDE]]")) return *code;
  const std::string picture = argc > 1 ? argv[1] : "pipeline_resnet.svg";
  const int64_t side = argc > 2 ? std::atoll(argv[2]) : 32;
  return on_ranks(3, [&](lockstep::Communicator& comm) { example(comm, picture, side); });
}
