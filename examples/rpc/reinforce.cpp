// Reinforcement learning among processes: an agent has the policy, observers have an environment
// each, and ask the agent for every action. Runs on 3 ranks of its own, an agent and two observers,
// when started by hand.
//   reinforce [--batched] [--width N] [--rounds N]
// --batched: the agent waits for all observers and answers them with one forward: a function that
// returns a Future. It is the faster way where a forward costs more than waiting: --width 1024.
// REINFORCE (Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist
// Reinforcement Learning", 1992).
#include <lockstep/core/mutex.h>
#include <lockstep/rpc/agent.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "../on_ranks.h"
#include "cart_pole.h"

namespace {

namespace rpc = lockstep::rpc;

constexpr int kSteps = 300;  // each observer's, in a round

struct Settings {
  bool batched = false;
  int64_t width = 64;  // of the policy
  int rounds = 60;
};

// What an observer has seen in one round.
struct Experience {
  std::vector<CartPole::State> states;
  std::vector<int64_t> actions;
  std::vector<int64_t> lengths;  // of its episodes; the last one may have been cut
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("states", states);
    visit("actions", actions);
    visit("lengths", lengths);
  }
};

at::Tensor tensor_of(const std::vector<CartPole::State>& states) {
  const auto rows = static_cast<int64_t>(states.size());
  return at::from_blob(const_cast<CartPole::State*>(states.data()), {rows, 4}, at::kDouble)
      .to(at::kFloat);
}

class Policy {
 public:
  Policy(int observers, int64_t width)
      : net_(torch::nn::Linear(4, width), torch::nn::ReLU(), torch::nn::Linear(width, width),
             torch::nn::ReLU(), torch::nn::Linear(width, 2)),
        waiting_(observers),
        random_(observers),
        optimizer_(net_->parameters(), 5e-3) {
    for (int i = 0; i < observers; ++i) random_[i].seed(i);
  }

  // An observer's action in a state, by itself.
  int64_t select(int observer, const CartPole::State& state) {
    const at::NoGradGuard no_grad;
    return draw(observer, probability_of_right(tensor_of({state})).item<float>());
  }

  // The same once all observers have asked. The caller waits; no thread does.
  rpc::Future<int64_t> select_batch(int observer, const CartPole::State& state) {
    lockstep::MutexLock lock(mutex_);
    waiting_[observer] = state;
    auto action = actions_.future().then(
        [observer](const std::vector<int64_t>& actions) { return actions[observer]; });
    if (++arrived_ == waiting_.size()) {
      const at::NoGradGuard no_grad;
      const at::Tensor right = probability_of_right(tensor_of(waiting_)).contiguous();
      std::vector<int64_t> actions;
      for (size_t i = 0; i < waiting_.size(); ++i)
        actions.push_back(draw(static_cast<int>(i), right.const_data_ptr<float>()[i]));
      arrived_ = 0;
      auto answer = std::exchange(actions_, {});
      lock.unlock();
      answer.set_value(std::move(actions));
    }
    return action;
  }

  // One step along the gradient of the rewards that followed the actions.
  void learn(const std::vector<Experience>& all) {
    std::vector<at::Tensor> states, actions, returns;
    for (const Experience& one : all) {
      states.push_back(tensor_of(one.states));
      actions.push_back(at::tensor(one.actions));
      for (const int64_t length : one.lengths) {
        // Every step is worth 1, later ones less: 1 + g + g^2 + ...
        const at::Tensor left = at::arange(length, 0, -1, at::kFloat);
        returns.push_back((1 - at::pow(0.99, left)) / (1 - 0.99));
      }
    }
    const at::Tensor value = at::cat(returns);
    const at::Tensor advantage = (value - value.mean()) / (value.std() + 1e-6);
    const at::Tensor chosen = at::log_softmax(net_->forward(at::cat(states)), 1)
                                  .gather(1, at::cat(actions).unsqueeze(1))
                                  .squeeze(1);
    optimizer_.zero_grad();
    (-chosen * advantage).mean().backward();
    optimizer_.step();
  }

 private:
  at::Tensor probability_of_right(const at::Tensor& states) {
    return at::softmax(net_->forward(states), 1).select(1, 1);
  }
  // Each observer has numbers of its own, so that results do not depend on who asks first.
  int64_t draw(int observer, double right) {
    return static_cast<double>(random_[observer]() >> 11) / 0x1p53 < right ? 1 : 0;
  }

  torch::nn::Sequential net_;
  lockstep::Mutex mutex_;
  std::vector<CartPole::State> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t arrived_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  rpc::Promise<std::vector<int64_t>> actions_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::mt19937_64> random_;  // an observer asks for one action at a time
  torch::optim::Adam optimizer_;
};

struct Observer {
  explicit Observer(int number) : number(number), world(100 + number) {}

  Experience run(const rpc::RRef<Policy>& policy, const std::string& select) {
    Experience seen;
    int64_t length = 0;
    world.reset();
    for (int i = 1; i <= kSteps; ++i) {
      seen.states.push_back(world.state());
      seen.actions.push_back(policy.rpc_sync<int64_t>(select, number, world.state()));
      world.step(static_cast<int>(seen.actions.back()));
      ++length;
      if (!world.over() && i < kSteps) continue;
      seen.lengths.push_back(std::exchange(length, 0));
      world.reset();
    }
    return seen;
  }

  const int number;
  CartPole world;
};

void train(const rpc::Agent& agent, int observers, const Settings& settings) {
  torch::manual_seed(1);
  const auto policy = std::make_shared<Policy>(observers, settings.width);
  const rpc::RRef<Policy> reference = agent.own(policy);
  std::vector<rpc::RRef<Observer>> all;
  for (int i = 0; i < observers; ++i)
    all.push_back(agent.remote<Observer>("observer" + std::to_string(i), "make_observer", i));

  const char* select = settings.batched ? "select_batch" : "select";
  std::vector<double> lengths;
  std::chrono::duration<double> asking(0);
  for (int round = 0; round < settings.rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<rpc::Future<Experience>> runs;
    for (const auto& one : all) runs.push_back(one.rpc_async<Experience>("run", reference, select));
    std::vector<Experience> seen;
    size_t episodes = 0;
    for (auto& run : runs) {
      seen.push_back(std::move(run).get());
      episodes += seen.back().lengths.size();
    }
    asking += std::chrono::steady_clock::now() - begin;
    lengths.push_back(static_cast<double>(kSteps) * observers / episodes);
    policy->learn(seen);
  }
  const int few = std::min(5, settings.rounds);
  const auto mean = [&](auto first) { return std::accumulate(first, first + few, 0.0) / few; };
  std::printf(
      "reward %.1f an episode in the first rounds, %.1f in the last; %.0f actions a second, %s\n",
      mean(lengths.begin()), mean(lengths.end() - few),
      settings.rounds * kSteps * observers / asking.count(),
      settings.batched ? "one forward for all observers" : "one forward each");
}

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("make_observer", [](int number) { return std::make_shared<Observer>(number); });
  registry.add("run", &Observer::run);
  registry.add("select", &Policy::select);
  registry.add("select_batch", &Policy::select_batch);
  return registry;
}

void example(lockstep::Communicator& comm, const Settings& settings) {
  if (comm.size() < 2)
    throw lockstep::InvalidArgument("reinforce needs 2 ranks or more: an agent and observers");
  const int rank = comm.rank();
  rpc::Agent agent = rpc::init(
      comm, functions(), {.name = rank == 0 ? "agent" : "observer" + std::to_string(rank - 1)});
  if (rank == 0) train(agent, comm.size() - 1, settings);
  agent.shutdown(std::chrono::minutes(10));  // observers serve until the agent comes here, too
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("An agent, and observers with an environment each.");
  Settings settings;
  app.add_flag("--batched", settings.batched, "one forward for all observers");
  app.add_option("--width", settings.width, "of the policy's layers")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "of 300 steps for each observer")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return on_ranks(3, [&](lockstep::Communicator& comm) { example(comm, settings); });
}
