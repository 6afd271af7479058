// A parameter server and its trainers, in three ways (--mode):
//   hogwild   the model lives on the server; trainers call its forward in contexts of their own,
//             and their DistributedOptimizers step whenever they are ready, without waiting for
//             each other (Recht et al., "Hogwild!", 2011)
//   batched   trainers have a copy of the model and send gradients; the server waits for all of
//             them, takes one step, and answers all of them at once: its function returns a Future
//   one-call  the same, but the server takes a step for each call
// Rank 0 is the server. Runs on 4 ranks of its own when started by hand.
#include <ATen/Functions.h>
#include <lockstep/core/mutex.h>
#include <lockstep/data/digits.h>
#include <lockstep/rpc/optimizer.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "../on_ranks.h"

namespace {

namespace rpc = lockstep::rpc;
using lockstep::data::DigitsSplit;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 32, kSteps = 100;
constexpr double kRate = 0.3;

struct Digits {
  Digits(int64_t count, int64_t seed, DigitsSplit split) {
    const auto drawn = lockstep::data::render_digits(count, seed, split);
    x = at::tensor(drawn.images, at::kFloat).view({count, 28 * 28}) / 255;
    y = at::tensor(drawn.labels, at::kLong);
  }
  // A step's batch: [kBatch, 784], [kBatch].
  std::pair<at::Tensor, at::Tensor> at_step(int64_t step) const {
    const int64_t first = step * kBatch % x.size(0);
    return {x.narrow(0, first, kBatch), y.narrow(0, first, kBatch)};
  }
  at::Tensor x, y;
};
Digits digits_of_trainer(int trainer) {
  return {20 * kBatch, trainer, DigitsSplit::kTrain};
}

// Two layers; parameters as fetched or as kept.
Tensors draw_model() {
  torch::manual_seed(1);
  Tensors all;
  for (const auto& layer : {torch::nn::Linear(28 * 28, 64), torch::nn::Linear(64, 10)})
    for (const at::Tensor& one : layer->parameters()) all.push_back(one);
  return all;
}
at::Tensor forward(const Tensors& p, const at::Tensor& x) {
  return at::linear(at::linear(x, p[0], p[1]).relu(), p[2], p[3]);
}
Tensors gradients(const Tensors& parameters, const Digits& digits, int64_t step) {
  const auto [x, y] = digits.at_step(step);
  return torch::autograd::grad({at::cross_entropy_loss(forward(parameters, x), y)}, parameters);
}
struct Score {
  double loss = 0, right = 0;  // right: of all, 0 to 1
};
Score score(const Tensors& parameters, const Digits& digits) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = forward(parameters, digits.x);
  return {at::cross_entropy_loss(logits, digits.y).item<double>(),
          logits.argmax(1).eq(digits.y).to(at::kDouble).mean().item<double>()};
}
Tensors copies(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& one : tensors) all.push_back(one.detach().clone());
  return all;
}
void take_step(Tensors& parameters, const Tensors& gradients, double rate) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].add_(gradients[i], -rate);
}
void take_mean_step(Tensors& parameters, const std::vector<Tensors>& gradients) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor sum = gradients[0][i].clone();
    for (size_t t = 1; t < gradients.size(); ++t) sum += gradients[t][i];
    parameters[i].add_(sum, -kRate / gradients.size());
  }
}

class Server {
 public:
  explicit Server(int trainers) : gradients_(trainers) {}

  Tensors fetch() {
    const lockstep::MutexLock lock(mutex_);
    return copies(parameters_);
  }
  // hogwild. Others step meanwhile: backward is computed with the parameters of this forward, of
  // which it keeps a copy.
  at::Tensor forward_here(const at::Tensor& x) {
    Tensors now;
    for (const at::Tensor& one : parameters_) now.push_back(one.clone());
    return forward(now, x);
  }
  std::vector<rpc::RRef<at::Tensor>> references() {
    std::vector<rpc::RRef<at::Tensor>> all;
    for (const at::Tensor& one : parameters_)
      all.push_back(rpc::Agent::current().own(std::make_shared<at::Tensor>(one)));
    return all;
  }
  // batched. -> the parameters after the step of all gradients.
  rpc::Future<Tensors> update_batch(int trainer, Tensors gradients) {
    lockstep::MutexLock lock(mutex_);
    auto updated = updated_.future();
    gradients_[trainer] = std::move(gradients);
    if (++arrived_ == gradients_.size()) {
      take_mean_step(parameters_, gradients_);
      arrived_ = 0;
      auto answer = std::exchange(updated_, {});
      Tensors fresh = copies(parameters_);
      lock.unlock();
      answer.set_value(std::move(fresh));
    }
    return updated;
  }
  // one-call.
  Tensors update(int /*trainer*/, const Tensors& gradients) {
    const lockstep::MutexLock lock(mutex_);
    take_step(parameters_, gradients, kRate / gradients_.size());
    return copies(parameters_);
  }

 private:
  lockstep::Mutex mutex_;
  Tensors parameters_ = draw_model();
  std::vector<Tensors> gradients_;  // of the trainers, of this step
  size_t arrived_ = 0;
  rpc::Promise<Tensors> updated_;
};

void train(const rpc::RRef<Server>& server, const std::string& mode, int trainer, int trainers) {
  const Digits digits = digits_of_trainer(trainer);
  if (mode == "hogwild") {
    const rpc::Agent agent = rpc::Agent::current();
    rpc::DistributedOptimizer optimizer(
        agent, server.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("references"),
        {.name = "sgd", .options = {{"lr", kRate / trainers}}});
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [x, y] = digits.at_step(step);
      rpc::AutogradContext context(agent);
      const at::Tensor loss = at::cross_entropy_loss(server.rpc_sync<at::Tensor>("forward", x), y);
      context.backward({loss});
      optimizer.step(context);
    }
    return;
  }
  Tensors parameters = server.rpc_sync<Tensors>("fetch");
  for (int64_t step = 0; step < kSteps; ++step) {
    for (at::Tensor& one : parameters) one.requires_grad_(true);
    parameters = server.rpc_sync<Tensors>(mode, trainer, gradients(parameters, digits, step));
  }
}

// What one process computes with all trainers' batches.
Tensors train_alone(int trainers) {
  std::vector<Digits> digits;
  for (int t = 0; t < trainers; ++t) digits.push_back(digits_of_trainer(t));
  Tensors parameters = draw_model();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<Tensors> all;
    for (const Digits& one : digits) all.push_back(gradients(parameters, one, step));
    take_mean_step(parameters, all);
  }
  return parameters;
}

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("train", train);
  registry.add("fetch", &Server::fetch);
  registry.add("forward", &Server::forward_here);
  registry.add("references", &Server::references);
  registry.add("batched", &Server::update_batch);
  registry.add("one-call", &Server::update);
  rpc::add_optimizers(registry);
  return registry;
}

void serve(const rpc::Agent& agent, int trainers, const std::string& mode) {
  const auto server = std::make_shared<Server>(trainers);
  const rpc::RRef<Server> reference = agent.own(server);
  const Digits test(500, 0, DigitsSplit::kTest);
  const Score before = score(server->fetch(), test);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<rpc::Future<void>> runs;
  for (int t = 0; t < trainers; ++t)
    runs.push_back(
        agent.rpc_async("trainer" + std::to_string(t), "train", reference, mode, t, trainers));
  rpc::wait_all(runs);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;

  const Tensors trained = server->fetch();
  const Score after = score(trained, test);
  std::printf(
      "%s, trainers: %d; loss of 500 digits %.3f to %.3f, %.1f %% right; %.0f gradients a second\n",
      mode.c_str(), trainers, before.loss, after.loss, 100 * after.right,
      trainers * kSteps / time.count());
  if (mode != "batched") return;
  const Tensors alone = train_alone(trainers);
  bool same = true;
  for (size_t i = 0; i < alone.size(); ++i) same = same && alone[i].equal(trained[i]);
  std::printf("the parameters are %s\n",
              same ? "those of one process, bit for bit" : "NOT THOSE OF ONE PROCESS");
}

void example(lockstep::Communicator& comm, const std::string& mode) {
  const int trainers = comm.size() - 1, rank = comm.rank();
  if (trainers < 1)
    throw lockstep::InvalidArgument(
        "parameter_server needs 2 ranks or more: a server and trainers");
  rpc::Agent agent = rpc::init(comm, functions(),
                               {.name = rank == 0 ? "ps" : "trainer" + std::to_string(rank - 1)});
  if (rank == 0) serve(agent, trainers, mode);
  agent.shutdown(std::chrono::minutes(10));  // trainers serve until the server comes here, too
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A parameter server and its trainers.");
  std::string mode = "hogwild";
  app.add_option("--mode", mode, "hogwild, batched or one-call")
      ->check(CLI::IsMember({"hogwild", "batched", "one-call"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return on_ranks(4, [&](lockstep::Communicator& comm) { example(comm, mode); });
}
