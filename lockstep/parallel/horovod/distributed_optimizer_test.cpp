#include "lockstep/parallel/horovod/distributed_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/parallel/horovod/broadcast.h"
#include "lockstep/parallel/horovod/test_net.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::horovod_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGDOptions;
using Sgd = DistributedOptimizer<torch::optim::SGD>;

std::vector<torch::Tensor> gradients(const Branches& net) {
  std::vector<torch::Tensor> result;
  for (const auto& p : net->parameters()) result.push_back(p.grad());
  return result;
}

void expect_close(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& want,
                  double tolerance, double factor = 1) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE((got[i] - want[i] * factor).abs().max().item<double>(),
              tolerance * (1e-30 + want[i].abs().max().item<double>() * factor))
        << i;
  }
}

// The average over the ranks of the gradients on batch(2, rank).
std::vector<torch::Tensor> average_over(int ranks) {
  Branches net;
  for (int r = 0; r < ranks; ++r) (loss_of(net, batch(2, r)) / ranks).backward();
  return gradients(net);
}

std::vector<torch::Tensor> reduced(Communicator& comm, const DistributedGradientsOptions& options) {
  Branches net;
  Sgd optimizer(comm, net->named_parameters(), options, net->parameters(), SGDOptions(0.1));
  loss_of(net, batch(2, comm.rank())).backward();
  optimizer.synchronize();
  return gradients(net);
}

TEST(DistributedOptimizer, SumPredivideAndCompression) {
  for (const int ranks : {3, 4}) {
    const auto average = average_over(ranks);
    testing::run_threads(ranks, [&](Communicator& comm) {
      expect_close(reduced(comm, {}), average, 1e-14);
      expect_close(reduced(comm, {.op = GradientOp::kSum}), average, 1e-14, ranks);
      expect_close(reduced(comm, {.gradient_predivide_factor = 3}), average, 1e-14);
      expect_close(reduced(comm, {.gradient_predivide_factor = 1.7}), average, 1e-14);
      // One rounding per rank, and one of the average.
      expect_close(reduced(comm, {.compression = Compression::kFloat16}), average, 3e-3);
      expect_close(reduced(comm, {.compression = Compression::kBFloat16}), average, 2e-2);
    });
  }
}

// The loop and the evaluation are the user's; share_buffers() makes them match the saved model.
TEST(DistributedOptimizer, AfterShareBuffersAllRanksMeasureWhatRankZeroSaves) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto make = [] {
      torch::nn::Sequential net(torch::nn::BatchNorm1d(6), torch::nn::Linear(6, 4));
      net->to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      for (auto& p : net->parameters())
        p.copy_(torch::linspace(-0.5, 0.5, p.numel(), torch::kDouble).view(p.sizes()));
      return net;
    };
    torch::nn::Sequential net = make();
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    net->forward(batch(4, comm.rank())).pow(2).mean().backward();
    optimizer.step();
    const auto means = [&] {
      return comm.all_gather(net->named_buffers()["0.running_mean"].view({1, -1}));
    };
    const torch::Tensor apart = means();
    ASSERT_FALSE(apart[0].equal(apart[1])) << "nothing differs, and nothing is tested";
    share_buffers(net, comm);
    EXPECT_TRUE(means()[1].equal(apart[0]));
    net->eval();
    const torch::NoGradGuard no_grad;
    const torch::Tensor measured = net->forward(batch(3));
    if (comm.rank() == 0) save(*net, dir / "net.safetensors");
    comm.barrier();
    torch::nn::Sequential saved = make();
    load(*saved, dir / "net.safetensors");
    saved->eval();
    EXPECT_TRUE(saved->forward(batch(3)).equal(measured));
  });
}

TEST(DistributedOptimizer, SeveralBackwardsAStepAddUp) {
  for (const int passes : {2, 3}) {
    testing::run_threads(2, [&](Communicator& comm) {
      Branches net;
      Sgd optimizer(comm, net->named_parameters(), {.backward_passes_per_step = passes},
                    net->parameters(), SGDOptions(0.1));
      Branches one;
      torch::optim::SGD plain(one->parameters(), SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        // The last step is shorter, on all ranks.
        const int here = step == 2 ? 1 : passes;
        optimizer.zero_grad();
        plain.zero_grad();
        for (int pass = 0; pass < here; ++pass) {
          // Branch 0 is used only in the first pass, and only on rank 1.
          const bool all = pass == 0 && comm.rank() == 1;
          loss_of(net, batch(2, 2 * pass + comm.rank()),
                  all ? std::vector{2, 0, 1} : std::vector{1, 2})
              .backward();
          for (int r = 0; r < 2; ++r) {
            (loss_of(one, batch(2, 2 * pass + r),
                     pass == 0 && r == 1 ? std::vector{2, 0, 1} : std::vector{1, 2}) /
             2)
                .backward();
          }
        }
        optimizer.step();
        plain.step();
        EXPECT_LT(largest_difference(net, one), 1e-12) << passes << " passes, step " << step;
      }
    });
  }
}

TEST(DistributedOptimizer, ABackwardTooManyIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    loss_of(net, batch(2)).backward();
    try {
      loss_of(net, batch(2)).backward();
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("arrived more than 1 times"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("parameter 'c2."), std::string::npos)
          << error.what();
    }
    optimizer.synchronize();
  });
}

TEST(DistributedOptimizer, ZeroGradIsGuarded) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    optimizer.zero_grad();
    loss_of(net, batch(2)).backward();
    EXPECT_THROW(optimizer.zero_grad(), InvalidArgument);
    optimizer.synchronize();
    optimizer.zero_grad();
    EXPECT_FALSE(net->parameters()[0].grad().defined());
    optimizer.step();  // without gradients
  });
}

TEST(DistributedOptimizer, GradientsCanBeClippedBetweenSynchronizeAndStep) {
  const double kMaxNorm = 0.05;
  Branches one;
  torch::optim::SGD plain(one->parameters(), SGDOptions(0.1));
  for (int r = 0; r < 2; ++r) (loss_of(one, batch(2, r)) / 2).backward();
  torch::nn::utils::clip_grad_norm_(one->parameters(), kMaxNorm);
  plain.step();
  for (const bool guarded : {true, false}) {
    testing::run_threads(2, [&](Communicator& comm) {
      Branches net;
      Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
      loss_of(net, batch(2, comm.rank())).backward();
      if (guarded) {
        const auto guard = optimizer.skip_synchronize();
        EXPECT_THROW(optimizer.step(), InvalidArgument);
      }
      optimizer.synchronize();
      torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm);
      if (guarded) {
        const auto guard = optimizer.skip_synchronize();
        optimizer.step();
      } else {
        optimizer.step();
      }
      EXPECT_LT(largest_difference(net, one), 1e-12);
    });
  }
}

TEST(DistributedOptimizer, WorksUnderGradScaler) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net, one;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    torch::optim::SGD plain(one->parameters(), SGDOptions(0.1));
    amp::GradScaler scaler(comm, {.init_scale = 1024});
    for (int step = 0; step < 4; ++step) {
      const bool overflows = step == 1;  // on one rank
      optimizer.zero_grad();
      auto loss = loss_of(net, batch(2, comm.rank() + step));
      if (overflows && comm.rank() == 1) loss = loss * std::numeric_limits<double>::infinity();
      scaler.scale(loss).backward();
      if (step == 2) {  // checked before
        scaler.unscale(optimizer);
        torch::nn::utils::clip_grad_norm_(net->parameters(), 1e9);
      }
      EXPECT_EQ(scaler.step(optimizer), !overflows);
      scaler.update();
      if (overflows) continue;
      plain.zero_grad();
      for (int r = 0; r < 2; ++r) (loss_of(one, batch(2, r + step)) / 2).backward();
      plain.step();
      EXPECT_LT(largest_difference(net, one), 1e-12) << step;
    }
    EXPECT_EQ(scaler.current_scale(), 512);
  });
}

TEST(DistributedOptimizer, TakesAnyOptimizer) {
  const auto follows_one_process = [](auto make_plain, auto make_distributed) {
    testing::run_threads(2, [&](Communicator& comm) {
      Branches net, one;
      auto optimizer = make_distributed(comm, net);
      auto plain = make_plain(one);
      for (int step = 0; step < 4; ++step) {
        const auto loss_on = [&](Branches& model, int r) {
          return loss_of(model, batch(2, r + step));
        };
        optimizer->step([&] {
          optimizer->zero_grad();
          auto loss = loss_on(net, comm.rank());
          loss.backward();
          return loss.detach();
        });
        plain->step([&] {
          plain->zero_grad();
          auto loss = (loss_on(one, 0) + loss_on(one, 1)) / 2;
          loss.backward();
          return loss.detach();
        });
        EXPECT_LT(largest_difference(net, one), 1e-6) << step;
      }
    });
  };
  const auto check = [&]<typename O, typename Options>(std::type_identity<O>, Options options) {
    follows_one_process(
        [&](Branches& net) { return std::make_unique<O>(net->parameters(), options); },
        [&](Communicator& comm, Branches& net) {
          return std::make_unique<DistributedOptimizer<O>>(comm, net->named_parameters(),
                                                           DistributedGradientsOptions{},
                                                           net->parameters(), options);
        });
  };
  using namespace torch::optim;
  check(std::type_identity<SGD>(), SGDOptions(0.1).momentum(0.9).nesterov(true));
  check(std::type_identity<Adam>(), AdamOptions(0.01));
  check(std::type_identity<AdamW>(), AdamWOptions(0.01));
  check(std::type_identity<RMSprop>(), RMSpropOptions(0.01));
  check(std::type_identity<Adagrad>(), AdagradOptions(0.01));
  check(std::type_identity<optim::FusedAdamW>(), AdamWOptions(0.01));
}

TEST(DistributedOptimizer, FusedStepWaitsForTheGradientsToo) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net, one;
    DistributedOptimizer<optim::FusedAdamW> optimizer(comm, net->named_parameters(), {},
                                                      net->parameters());
    optim::FusedAdamW plain(one->parameters());
    loss_of(net, batch(2, comm.rank())).backward();
    for (int r = 0; r < 2; ++r) (loss_of(one, batch(2, r)) / 2).backward();
    optim::FusedStep& fused = optimizer;
    const auto got = fused.step({.max_norm = 0.1});
    const auto want = plain.step({.max_norm = 0.1});
    EXPECT_NEAR(*got.grad_norm, *want.grad_norm, 1e-12);
    EXPECT_LT(largest_difference(net, one), 1e-10);
    broadcast_optimizer_state(optimizer, comm);
    EXPECT_EQ(optimizer_state(optimizer).metadata.at("optimizer"), "AdamW");
  });
}

// Two sets of ranks, each of which trains by itself.
TEST(DistributedOptimizer, ProcessSets) {
  testing::run_threads(4, [](Communicator& comm) {
    auto even = comm.subgroup({0, 2});
    auto odd = comm.subgroup({1, 3});
    Communicator mine = even ? *even : *odd;
    Branches net, one;
    Sgd optimizer(mine, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    const int base = even ? 0 : 10;
    loss_of(net, batch(2, base + mine.rank())).backward();
    optimizer.step();
    torch::optim::SGD plain(one->parameters(), SGDOptions(0.1));
    ((loss_of(one, batch(2, base)) + loss_of(one, batch(2, base + 1))) / 2).backward();
    plain.step();
    EXPECT_LT(largest_difference(net, one), 1e-12);
  });
}

TEST(DistributedOptimizer, AdasumCombinesTheSteps) {
  const auto adasum = [](const torch::Tensor& a, const torch::Tensor& b) {
    const auto ab = (a * b).sum(), aa = (a * a).sum(), bb = (b * b).sum();
    return (1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b;
  };
  testing::run_threads(2, [&](Communicator& comm) {
    Branches net;
    DistributedOptimizer<torch::optim::Adam> optimizer(
        comm, net->named_parameters(), {.op = GradientOp::kAdasum}, net->parameters(),
        torch::optim::AdamOptions(0.01));
    optimizer.zero_grad();
    loss_of(net, batch(2, comm.rank())).backward();
    optimizer.synchronize();
    optimizer.step();
    std::vector<std::vector<torch::Tensor>> steps;
    Branches start;
    for (int r = 0; r < 2; ++r) {
      Branches one;
      torch::optim::Adam plain(one->parameters(), torch::optim::AdamOptions(0.01));
      loss_of(one, batch(2, r)).backward();
      plain.step();
      auto& list = steps.emplace_back();
      for (size_t i = 0; i < one->parameters().size(); ++i)
        list.push_back((one->parameters()[i] - start->parameters()[i]).detach());
    }
    for (size_t i = 0; i < start->parameters().size(); ++i) {
      const auto want = start->parameters()[i] + adasum(steps[0][i], steps[1][i]);
      EXPECT_TRUE(torch::allclose(net->parameters()[i], want, 1e-12, 1e-12)) << i;
    }
  });
}

TEST(DistributedOptimizer, RefusesWhatItCannotDo) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    const auto make = [&](const NamedParameters& names,
                          const DistributedGradientsOptions& options) {
      Sgd(comm, names, options, net->parameters(), SGDOptions(0.1));
    };
    EXPECT_THROW(make({}, {.backward_passes_per_step = 0}), InvalidArgument);
    EXPECT_THROW(make({}, {.gradient_predivide_factor = 0}), InvalidArgument);
    EXPECT_THROW(make({}, {.op = GradientOp::kSum, .gradient_predivide_factor = 2}),
                 InvalidArgument);
    EXPECT_THROW(make({}, {.fusion_threshold = 0}), InvalidArgument);
    EXPECT_THROW(make({}, {.rounds = 0}), InvalidArgument);
    EXPECT_THROW(make(net->first[0]->named_parameters(), {}), InvalidArgument) << "names missing";
    EXPECT_THROW(
        DistributedGradients({{"a", net->parameters()[0]}}, comm, {.op = GradientOp::kAdasum}),
        InvalidArgument);
    Sgd optimizer(comm, {}, {}, net->parameters(), SGDOptions(0.1));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        {torch::ones({2}, torch::kDouble).set_requires_grad(true)}));
    EXPECT_THROW(optimizer.step(), InvalidArgument);

    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    Sgd sparse(comm, table->named_parameters(), {}, table->parameters(), SGDOptions(0.1));
    const auto rows = torch::tensor({1 + comm.rank()});
    EXPECT_THROW(table(rows).sum().backward(), InvalidArgument);
    table->weight.mutable_grad() = torch::Tensor();
    sparse.synchronize();
    Sgd dense(comm, table->named_parameters(), {.sparse_as_dense = true}, table->parameters(),
              SGDOptions(0.1));
  });
}

TEST(DistributedOptimizer, ParametersThatChangeAfterwardsAreNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(2, 2);
    net->bias.set_requires_grad(false);
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    const auto said = [&] {
      net->zero_grad();
      net(torch::ones({1, 2}, net->weight.options().requires_grad(false))).sum().backward();
      return message_of<InvalidArgument>([&] { optimizer.step(); });
    };
    net->bias.set_requires_grad(true);
    EXPECT_THAT(said(), HasSubstr("parameter 'bias' required no gradient"));
    net->bias.set_requires_grad(false);
    optimizer.step();
    net->to(torch::kDouble);
    EXPECT_THAT(said(), HasSubstr("parameter 'weight' was Float [2, 2] on cpu"));
    net->to(torch::kFloat);
    EXPECT_THAT(said(), HasSubstr("parameter 'weight' has been of another type"));
    net->weight.set_requires_grad(false);
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { DistributedGradients(to_named_tensors(net->named_parameters()), comm); }),
                HasSubstr("requires a gradient"));
  });
}

TEST(DistributedOptimizer, SparseGradientsAsDense) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    Sgd optimizer(comm, table->named_parameters(), {.sparse_as_dense = true}, table->parameters(),
                  SGDOptions(0.1));
    table(torch::tensor({1 + comm.rank()})).sum().backward();
    optimizer.synchronize();
    const auto want = torch::tensor({{0., 0.}, {.5, .5}, {.5, .5}, {0., 0.}}, torch::kFloat);
    EXPECT_TRUE(torch::equal(table->weight.grad(), want));
  });
}

// For an existing optimizer.
TEST(DistributedGradients, BesideAnyOptimizer) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    std::unique_ptr<torch::optim::Optimizer> optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), SGDOptions(0.1));
    DistributedGradients distributed(parameters_of(net), comm);
    loss_of(net, batch(2, comm.rank())).backward();
    EXPECT_TRUE(distributed.pending());
    distributed.synchronize();
    EXPECT_FALSE(distributed.pending());
    expect_close(gradients(net), average_over(2), 1e-14);
    optimizer->step();
    distributed.stepped();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::horovod_test
