// DistributedDataParallel beside remote calls: a large embedding table lives on a parameter server,
// trainers look rows up in it and train the layers behind it with DistributedDataParallel; a master
// starts them. The table's gradients are sparse. The losses are those of one process, which is
// checked. Runs on 4 ranks of its own (a master, two trainers, the server) when started by hand.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <lockstep/rpc/optimizer.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../on_ranks.h"

namespace {

namespace rpc = lockstep::rpc;

constexpr int64_t kRows = 5000, kWidth = 16, kClasses = 8, kBags = 32, kEach = 6;
constexpr int kSteps = 100;
constexpr double kRate = 1;

struct Table {
  Table() : bags(torch::nn::EmbeddingBagOptions(kRows, kWidth).mode(torch::kSum).sparse(true)) {
    torch::manual_seed(1);
    bags->reset_parameters();
    const at::NoGradGuard no_grad;
    bags->weight.mul_(0.1);
  }
  at::Tensor forward(const at::Tensor& ids) { return bags(ids); }
  torch::nn::EmbeddingBag bags;
};
torch::nn::Linear make_head() {
  torch::manual_seed(2);
  return torch::nn::Linear(kWidth, kClasses);
}

// Bags of ids [kBags, kEach], some ids far more often than others, as words are. Most ids of a bag
// tell its class: their remainder.
struct Batch {
  Batch(int trainer, int64_t step) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + trainer);
    const auto draw = [&](int64_t below, at::IntArrayRef shape) {
      return at::randint(below, shape, generator, at::kLong);
    };
    classes = draw(kClasses, {kBags});
    const at::Tensor remainders = draw(kClasses, {kBags, kEach});
    remainders.narrow(1, 0, 4).copy_(classes.unsqueeze(1));
    const at::Tensor rare = at::rand({kBags, kEach}, generator, at::kDouble).pow(4);
    ids = (rare * (kRows / kClasses)).to(at::kLong) * kClasses + remainders;
  }
  at::Tensor ids, classes;
};

struct Outcome {
  std::vector<double> losses;
  int64_t rows = 0;  // that the table's gradient of the first step has
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("losses", losses);
    visit("rows", rows);
  }
};

Outcome train(lockstep::Communicator trainers, const rpc::RRef<Table>& table) {
  const rpc::Agent agent = rpc::Agent::current();
  lockstep::DistributedDataParallel head(make_head(), trainers);
  torch::optim::SGD optimizer(head->parameters(), torch::optim::SGDOptions(kRate));
  rpc::DistributedOptimizer of_table(
      agent, table.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters"),
      {.name = "sgd", .options = {{"lr", kRate}}});
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch(trainers.rank(), step);
    rpc::AutogradContext context(agent);
    const at::Tensor sums = table.rpc_sync<at::Tensor>("look_up", batch.ids);
    // The local part runs backward by itself, with DistributedDataParallel's averages in grad().
    const at::Tensor here = sums.detach().requires_grad_(true);
    const at::Tensor loss = at::cross_entropy_loss(head(here), batch.classes);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    // Then the remote part, which begins with the gradient that has come so far. All trainers' go
    // to one table: they share.
    context.backward({(sums * here.grad()).sum() / trainers.size()});
    if (step == 0) outcome.rows = table.rpc_sync<at::Tensor>("gradient")._nnz();
    // One after another: the table's rows are the same in every run, to the last bit. And none
    // looks up what others are to change.
    for (int turn = 0; turn < trainers.size(); ++turn) {
      if (turn == trainers.rank()) of_table.step(context);
      trainers.barrier();
    }
    outcome.losses.push_back(loss.item<double>());
  }
  return outcome;
}

// The same in one process, with all trainers' batches.
std::vector<double> train_alone(int trainers) {
  Table table;
  torch::nn::Linear head = make_head();
  std::vector<at::Tensor> parameters = head->parameters();
  parameters.push_back(table.bags->weight);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(kRate));
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> ids, classes;
    for (int t = 0; t < trainers; ++t) {
      ids.push_back(Batch(t, step).ids);
      classes.push_back(Batch(t, step).classes);
    }
    const at::Tensor loss =
        at::cross_entropy_loss(head(table.forward(at::cat(ids))), at::cat(classes));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void master(const rpc::Agent& agent, int trainers) {
  const auto table = agent.remote<Table>("ps", "make_table");
  std::vector<rpc::Future<Outcome>> runs;
  for (int t = 0; t < trainers; ++t)
    runs.push_back(agent.rpc_async<Outcome>("trainer" + std::to_string(t), "train", table));
  std::vector<double> losses(kSteps);
  for (const auto& run : runs)
    for (int step = 0; step < kSteps; ++step) losses[step] += run.get().losses[step] / trainers;
  const std::vector<double> alone = train_alone(trainers);
  double off = 0;
  for (int step = 0; step < kSteps; ++step)
    off = std::max(off, std::abs(losses[step] - alone[step]));
  std::printf(
      "trainers: %d; loss %.3f to %.3f, %.1e at most from one process's; the table's gradient has "
      "%lld of %lld rows\n",
      trainers, losses.front(), losses.back(), off, static_cast<long long>(runs[0].get().rows),
      static_cast<long long>(kRows));
}

void example(lockstep::Communicator& comm) {
  const int last = comm.size() - 1, trainers = comm.size() - 2, rank = comm.rank();
  if (trainers < 1)
    throw lockstep::InvalidArgument(
        "ddp_embedding needs 3 ranks or more: a master, trainers, a server");
  // The trainers' communicator; the others have none.
  const std::optional<lockstep::Communicator> group = comm.split(0 < rank && rank < last ? 0 : -1);

  rpc::Registry registry;
  registry.add("make_table", [] { return std::make_shared<Table>(); });
  registry.add("look_up", &Table::forward);
  registry.add("parameters", [](Table& table) {
    return std::vector{rpc::Agent::current().own(std::make_shared<at::Tensor>(table.bags->weight))};
  });
  // Of the caller's context. It travels as it is, sparse.
  registry.add("gradient", [](Table& /*table*/) { return rpc::context_gradients().at(0).second; });
  registry.add("train",
               [group](const rpc::RRef<Table>& table) { return train(group.value(), table); });
  rpc::add_optimizers(registry);
  const std::string name = rank == 0      ? "master"
                           : rank == last ? "ps"
                                          : "trainer" + std::to_string(rank - 1);
  rpc::Agent agent = rpc::init(comm, std::move(registry), {.name = name});
  if (rank == 0) master(agent, trainers);
  agent.shutdown(std::chrono::minutes(10));  // the others serve until the master comes here, too
}

}  // namespace

int main() {
  return on_ranks(4, example);
}
