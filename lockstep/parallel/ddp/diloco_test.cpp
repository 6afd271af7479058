#include "lockstep/parallel/ddp/diloco.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/ddp/average_parameters.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::diloco_test {
namespace {

using ::testing::HasSubstr;

const auto kDouble = at::TensorOptions(at::kDouble);

// Of rank r after the n-th step: a small dyadic number, so that sums are exact.
double change(int rank, int64_t step, int64_t element) {
  return 0.125 * static_cast<double>((rank + 1) * (step + 2) - 3 * element);
}

void take_inner_step(const at::Tensor& parameter, int rank, int64_t step) {
  double* values = parameter.mutable_data_ptr<double>();
  for (int64_t i = 0; i < parameter.numel(); ++i) values[i] += change(rank, step, i);
}

// Two ranks, H = 2, lr 0.5, Nesterov's momentum 0.5, computed by hand below.
TEST(DiLoCo, TwoRanksFollowAComputationByHand) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor p = at::tensor({1.0, -2.0}, kDouble);
    DiLoCo diloco({{"p", p}}, comm, {.period = 2, .lr = 0.5, .momentum = 0.5});
    std::vector<double> outer{1, -2}, momentum{0, 0};
    for (int64_t step = 0; step < 8; ++step) {
      take_inner_step(p, comm.rank(), step);
      const bool due = step % 2 == 1;
      EXPECT_EQ(diloco.step(), due) << step;
      if (!due) {
        EXPECT_EQ(p[0].item<double>(), outer[0] + change(comm.rank(), step, 0))
            << "between outer steps a rank is by itself";
        continue;
      }
      for (int64_t i = 0; i < 2; ++i) {
        double gradient = 0;  // the mean of what the ranks have gone back
        for (int rank = 0; rank < 2; ++rank)
          gradient -= (change(rank, step - 1, i) + change(rank, step, i)) / 2;
        const auto at = static_cast<size_t>(i);
        momentum[at] = 0.5 * momentum[at] + gradient;
        outer[at] -= 0.5 * (gradient + 0.5 * momentum[at]);
        EXPECT_EQ(p[i].item<double>(), outer[at]) << step << " " << i;
      }
    }
    EXPECT_EQ(diloco.outer_steps(), 4);
    EXPECT_EQ(diloco.inner_steps(), 0);
  });
}

TEST(DiLoCo, InEveryStepWithoutMomentumItAverages) {
  testing::run_threads(3, [](Communicator& comm) {
    const at::Tensor p = at::tensor({1.0, -2.0, 0.5}, kDouble), averaged = p.clone();
    DiLoCo diloco({{"p", p}}, comm, {.period = 1, .lr = 1, .momentum = 0});
    for (int64_t step = 0; step < 4; ++step) {
      take_inner_step(p, 3 * comm.rank(), step);  // sums of three are multiples of 3
      take_inner_step(averaged, 3 * comm.rank(), step);
      EXPECT_TRUE(diloco.step());
      average_parameters(NamedTensors{{"p", averaged}}, comm);
      EXPECT_TRUE(at::allclose(p, averaged, 0, 1e-15)) << step;
    }
    EXPECT_EQ(diloco.state().size(), 2u) << "no momentum is kept";
  });
}

// The outer steps are those of torch.optim.SGD, bit for bit.
TEST(DiLoCo, TheOuterOptimizerIsTorchsSgd) {
  for (const bool nesterov : {true, false}) {
    testing::run_threads(2, [&](Communicator& comm) {
      const at::Tensor start = at::linspace(-1, 1, 12, kDouble).view({3, 4}).sin();
      const at::Tensor p = start.clone();
      DiLoCo diloco({{"p", p}}, comm, {.period = 3, .nesterov = nesterov});
      at::Tensor reference = start.clone().set_requires_grad(true);
      torch::optim::SGD sgd({reference},
                            torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(nesterov));
      for (int64_t step = 0; step < 9; ++step) {
        p.add_(at::linspace(0, 1, 12, kDouble).view({3, 4}) * (0.01 * (step + 1)) *
               (comm.rank() + 1));
        if (step % 3 == 2) {
          at::Tensor gradient = reference.detach() - p;
          comm.all_reduce(gradient, ReduceOp::kAvg);
          reference.mutable_grad() = gradient;
          sgd.step();
        }
        diloco.step();
      }
      EXPECT_TRUE(at::equal(p, reference.detach()));
      EXPECT_FALSE(at::equal(p, start));
    });
  }
}

TEST(DiLoCo, AModulesRanksBeginAndEndEqual) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(4, 3);
    {
      const at::NoGradGuard no_grad;
      net->weight.fill_(comm.rank() + 1);
    }
    DiLoCo diloco(net, comm, {.period = 4});
    EXPECT_EQ(net->weight[0][0].item<float>(), 1) << "rank 0's";
    EXPECT_TRUE(net->weight.requires_grad());
    torch::optim::SGD inner(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int64_t step = 0; step < 6; ++step) {
      inner.zero_grad();
      net(at::full({2, 4}, static_cast<float>(comm.rank() + step))).sum().backward();
      inner.step();
      diloco.step();
    }
    EXPECT_EQ(diloco.inner_steps(), 2);
    diloco.outer_step();  // the rest, at the end
    EXPECT_EQ(diloco.inner_steps(), 0);
    const at::Tensor all = comm.all_gather(net->weight.detach().flatten());
    EXPECT_TRUE(at::equal(all.slice(0, 0, 12), all.slice(0, 12, 24)));
  });
}

TEST(DiLoCo, ShortFloatsHaveALongerOuterCopy) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor p = at::ones({3}, at::kBFloat16);
    DiLoCo diloco({{"p", p}}, comm, {.period = 1, .lr = 1.0 / 1024, .momentum = 0});
    for (int step = 0; step < 16; ++step) {
      p.add_(1);
      diloco.step();
    }
    // Each outer step is 2^-10 of a change of 1, less than bfloat16 resolves at 1; of the rounded
    // parameters the changes are exact.
    const at::Tensor outer = diloco.state()[1].second;
    EXPECT_EQ(outer.scalar_type(), at::kFloat);
    EXPECT_NEAR(outer[0].item<double>(), 1 + 16.0 / 1024, 1e-3);
    EXPECT_TRUE(at::equal(p, outer.to(at::kBFloat16)));
  });
}

// The rounding of the model's parameters is no change of them.
TEST(DiLoCo, NoChangeIsNoOuterStepWithShortFloats) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor p = at::ones({3}, at::kBFloat16);
    DiLoCo diloco({{"p", p}}, comm, {.period = 1, .lr = 1.0 / 1024, .momentum = 0});
    p.add_(1);
    diloco.step();
    const at::Tensor outer = diloco.state()[1].second.clone();
    EXPECT_FALSE(at::equal(outer, outer.to(at::kBFloat16).to(at::kFloat))) << "it is between two";
    for (int step = 0; step < 8; ++step) diloco.step();
    EXPECT_TRUE(at::equal(diloco.state()[1].second, outer));
  });
}

TEST(DiLoCo, ContinuesFromAState) {
  testing::run_threads(2, [](Communicator& comm) {
    const DiLoCoOptions options{.period = 2};
    const at::Tensor p = at::tensor({1.0, -2.0}, kDouble), q = p.clone();
    DiLoCo whole({{"p", p}}, comm, options);
    for (int64_t step = 0; step < 4; ++step) {
      take_inner_step(p, comm.rank(), step);
      whole.step();
    }
    NamedTensors state;
    for (const auto& [name, tensor] : whole.state()) state.emplace_back(name, tensor.clone());
    DiLoCo later({{"p", q}}, comm, options);
    later.load_state(state);
    EXPECT_EQ(later.outer_steps(), 2);
    q.copy_(p);
    for (int64_t step = 4; step < 8; ++step) {
      for (const at::Tensor& each : {p, q}) take_inner_step(each, comm.rank(), step);
      whole.step();
      later.step();
    }
    EXPECT_TRUE(at::equal(p, q));

    const auto refused = [&](const NamedTensors& other) {
      return message_of<InvalidArgument>([&] { later.load_state(other); });
    };
    NamedTensors less = state, more = state, others = state;
    less.pop_back();
    EXPECT_EQ(refused(less), "DiLoCo: the state has no momentum.p");
    more.emplace_back("outer.q", at::zeros({1}));
    EXPECT_EQ(refused(more), "DiLoCo: the state has outer.q, and this has not");
    others[1].second = at::zeros({3}, kDouble);
    EXPECT_EQ(refused(others), "DiLoCo: outer.p of the state has another shape or type");
    NamedTensors within = state;
    within[0].second = at::tensor({1, 2}, at::kLong);
    EXPECT_THAT(refused(within), HasSubstr("was taken 1 inner steps after an outer one"));
    NamedTensors damaged = state;
    damaged[0].second = at::tensor({0, -1}, at::kLong);
    EXPECT_EQ(refused(damaged), "DiLoCo: the steps of the state are damaged");
    EXPECT_EQ(
        message_of<InvalidArgument>([&] { later.load_state(comm.rank() == 0 ? less : state); }),
        comm.rank() == 0 ? "DiLoCo: the state has no momentum.p"
                         : "DiLoCo: another rank refuses its state, and says why");
    NamedTensors rank_own = state;
    rank_own[1].second = at::full({2}, 1.0 + comm.rank(), kDouble);
    EXPECT_THAT(message_of<Mismatch>([&] { later.load_state(rank_own); }), HasSubstr("outer.p"));
    EXPECT_EQ(later.outer_steps(), 4) << "unchanged";
  });
}

// Within a period each rank brings its own parameters.
TEST(DiLoCo, ContinuesWithinAPeriod) {
  testing::run_threads(2, [](Communicator& comm) {
    const DiLoCoOptions options{.period = 3};
    const at::Tensor p = at::tensor({1.0, -2.0}, kDouble), q = p.clone();
    DiLoCo whole({{"p", p}}, comm, options);
    for (int64_t step = 0; step < 5; ++step) {
      take_inner_step(p, comm.rank(), step);
      whole.step();
    }
    NamedTensors state;
    for (const auto& [name, tensor] : whole.state()) state.emplace_back(name, tensor.clone());
    const NamedTensors own{{"p", p.clone()}};
    DiLoCo later({{"p", q}}, comm, options);
    EXPECT_THAT(message_of<InvalidArgument>([&] { later.load_state(state); }),
                HasSubstr("was taken 2 inner steps after an outer one"));
    EXPECT_EQ(message_of<InvalidArgument>([&] { later.load_state(state, {{"q", p}}); }),
              "DiLoCo: own has no p");
    later.load_state(state, own);
    EXPECT_EQ(later.inner_steps(), 2);
    EXPECT_EQ(later.outer_steps(), 1);
    EXPECT_TRUE(at::equal(q, p)) << "this rank's own";
    for (int64_t step = 5; step < 9; ++step) {
      for (const at::Tensor& each : {p, q}) take_inner_step(each, comm.rank(), step);
      EXPECT_EQ(whole.step(), later.step());
    }
    EXPECT_TRUE(at::equal(p, q));
    EXPECT_EQ(later.outer_steps(), 3);
  });
}

TEST(DiLoCo, BeginsAnewWhereTheModelIs) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor p = at::tensor({1.0, -2.0}, kDouble);
    DiLoCo diloco({{"p", p}}, comm, {.period = 2});
    EXPECT_EQ(diloco.bytes(), 32) << "two copies of two numbers";
    for (int64_t step = 0; step < 3; ++step) {
      take_inner_step(p, comm.rank(), step);
      diloco.step();
    }
    EXPECT_THAT(message_of<Mismatch>([&] { diloco.begin_anew(); }),
                HasSubstr("the beginning of DiLoCo"));
    EXPECT_EQ(diloco.inner_steps(), 1) << "unchanged";
    p.fill_(7);
    diloco.begin_anew();
    EXPECT_EQ(diloco.inner_steps(), 0);
    EXPECT_EQ(diloco.outer_steps(), 0);
    diloco.outer_step();
    EXPECT_TRUE(at::equal(p, at::full({2}, 7.0, kDouble))) << "neither a change nor a momentum";
  });
}

TEST(DiLoCo, MistakesAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors one{{"p", at::zeros({2})}};
    const auto refused = [&](const DiLoCoOptions& options) {
      return message_of<InvalidArgument>([&] { DiLoCo(one, comm, options); });
    };
    EXPECT_EQ(refused({.period = 0}), "DiLoCo: the period is 0 steps; give 1 or more");
    EXPECT_THAT(refused({.lr = 0}), HasSubstr("give a number above 0"));
    EXPECT_THAT(refused({.lr = std::nan("")}), HasSubstr("give a number above 0"));
    EXPECT_THAT(refused({.momentum = 1}), HasSubstr("give 0 or more, and less than 1"));
    EXPECT_EQ(
        message_of<InvalidArgument>([&] { DiLoCo({{"n", at::zeros({2}, at::kLong)}}, comm); }),
        "DiLoCo: n is not of floating point");
    EXPECT_THAT(message_of<Mismatch>([&] { DiLoCo({{"p", at::zeros({comm.rank() + 2})}}, comm); }),
                HasSubstr("p"));
    EXPECT_THAT(message_of<Mismatch>([&] { DiLoCo(one, comm, {.lr = 0.5 + comm.rank()}); }),
                HasSubstr("the option lr"));
    const at::Tensor memory = at::zeros({2});
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { DiLoCo({{"a", memory}, {"b", memory.view({2})}}, comm); }),
                HasSubstr("b shares its memory"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::diloco_test
