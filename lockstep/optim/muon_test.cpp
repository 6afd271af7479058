// Muon compared with its description, written out in float64, and with torch.optim.Muon.
#include "lockstep/optim/muon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/internal/test_parameters.h"

namespace lockstep::inline v0::optim::muon_test {
namespace {

using ::testing::HasSubstr;

std::vector<at::Tensor> matrices(at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : test::parameters(dtype)) {
    if (tensor.dim() == 2) result.push_back(tensor);
  }
  return result;  // wide, tall, and one with transposed layout
}

struct Paper {
  std::vector<at::Tensor> x, m;

  explicit Paper(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      x.push_back(parameter.detach().to(at::kDouble).clone());
      m.push_back(torch::zeros_like(x.back()));
    }
  }
  void step(const std::vector<at::Tensor>& gradients, const MuonOptions& options) {
    for (size_t i = 0; i < x.size(); ++i) {
      const at::Tensor g = gradients[i].to(at::kDouble);
      m[i] = options.momentum() * m[i] + (1 - options.momentum()) * g;
      at::Tensor o =
          options.nesterov() ? options.momentum() * m[i] + (1 - options.momentum()) * g : m[i];
      const auto rows = static_cast<double>(o.size(0)), columns = static_cast<double>(o.size(1));
      if (rows > columns) o = o.t();
      o = o / o.norm();
      for (int k = 0; k < options.iterations(); ++k) {
        const at::Tensor a = o.matmul(o.t());
        o = 3.4445 * o + (-4.7750 * a + 2.0315 * a.matmul(a)).matmul(o);
      }
      if (rows > columns) o = o.t();
      const double factor = options.rate() == MuonRate::kOriginal
                                ? std::sqrt(std::max(1.0, rows / columns))
                                : 0.2 * std::sqrt(std::max(rows, columns));
      x[i] = (1 - options.lr() * options.weight_decay()) * x[i] - options.lr() * factor * o;
    }
  }
};

TEST(Muon, FollowsItsDescription) {
  for (const MuonRate rate : {MuonRate::kOriginal, MuonRate::kMatchAdamW}) {
    for (const bool nesterov : {true, false}) {
      const auto parameters = matrices(at::kDouble);
      ASSERT_EQ(parameters.size(), 3u);
      const MuonOptions options =
          MuonOptions(0.02).rate(rate).nesterov(nesterov).dtype(at::kDouble);
      Paper paper(parameters);
      const std::vector<at::Tensor> start = paper.x;
      Muon optimizer(parameters, options);
      for (int step = 0; step < 30; ++step) {
        const auto gradients = test::gradients(parameters, step);
        test::give_gradients(parameters, gradients);
        optimizer.step();
        paper.step(gradients, options);
      }
      EXPECT_LT(test::relative_distance(parameters, paper.x), 1e-12);
      EXPECT_GT(test::relative_distance(parameters, start), 1e-2);
    }
  }
}

// PyTorch 2.13, torch.optim.Muon(lr=0.05, weight_decay=0.1, momentum=0.95): it iterates in
// bfloat16, whose products are rounded differently on different processors.
TEST(Muon, IsPyTorchs) {
  const std::vector<double> p_original = {0.00084,  0.37506,  0.55318,  0.39448,  0.07521, -0.14773,
                                          -0.33474, -0.44178, -0.36134, -0.07339, 0.34084, 0.55959};
  const std::vector<double> q_original = {1.05729, 0.96466,  0.76465,  0.52287,  0.29006,
                                          0.068,   -0.16061, -0.41504, -0.68409, -0.91545};
  const std::vector<double> p_matched = {0.00029,  0.33524,  0.5057,   0.41176,  0.13282, -0.16297,
                                         -0.39373, -0.46615, -0.32636, -0.02006, 0.32746, 0.50878};
  const std::vector<double> q_matched = {1.01194, 0.94644,  0.7869,   0.56895,  0.32507,
                                         0.06855, -0.19431, -0.45778, -0.70347, -0.89679};
  for (const MuonRate rate : {MuonRate::kOriginal, MuonRate::kMatchAdamW}) {
    const at::Tensor p = ((torch::arange(12) * 0.7).sin().view({4, 3}) * 0.5).requires_grad_();
    const at::Tensor q = (torch::arange(10) * 0.3).cos().view({2, 5}).requires_grad_();
    Muon optimizer({p, q}, MuonOptions(0.05).rate(rate));
    for (int step = 0; step < 5; ++step) {
      p.mutable_grad() = (torch::arange(12) * 1.3 + step).cos().view({4, 3});
      q.mutable_grad() = (torch::arange(10) * 0.9 - step).sin().view({2, 5}) * 3;
      optimizer.step();
    }
    const bool original = rate == MuonRate::kOriginal;
    const auto near = [](const at::Tensor& found, const std::vector<double>& expected) {
      const at::Tensor flat = found.detach().flatten().to(at::kDouble).contiguous();
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), expected[i], 4e-3) << i;
    };
    near(p, original ? p_original : p_matched);
    near(q, original ? q_original : q_matched);
  }
}

TEST(Muon, ClipsAndGoesOnFromAFile) {
  const auto a = matrices(at::kFloat), b = matrices(at::kFloat);
  const MuonOptions options = MuonOptions(0.02).dtype(at::kFloat);
  Muon first(a, options), second(b, options);
  const auto step = [](Muon& optimizer, const std::vector<at::Tensor>& parameters, int number) {
    test::give_gradients(parameters, test::gradients(parameters, number));
    return optimizer.step({.max_norm = 1.0});
  };
  for (int i = 0; i < 3; ++i) EXPECT_GT(*step(first, a, i).grad_norm, 1);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < a.size(); ++i) b[i].copy_(a[i]);
  }
  const Safetensors state = optimizer_state(first);
  set_optimizer_state(second, state, "test");
  for (int i = 3; i < 5; ++i) {
    step(first, a, i);
    step(second, b, i);
  }
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i]));
  torch::optim::SGD plain(matrices(at::kFloat), torch::optim::SGDOptions(0.1));
  EXPECT_THROW(set_optimizer_state(plain, state, "test"), CheckpointError);
}

TEST(Muon, WhatItDoesNotTakeIsNamed) {
  const auto matrix = torch::ones({2, 3}).requires_grad_();
  EXPECT_THAT(message_of<InvalidArgument>([] { Muon({torch::ones({3}).requires_grad_()}); }),
              HasSubstr("parameter 0 of group 0 has 1 dimension(s)"));
  EXPECT_THROW(Muon({matrix}, MuonOptions().iterations(0)), InvalidArgument);
  MuonOptions damped;
  damped.dampening(0.1);
  EXPECT_THROW(Muon({matrix}, damped), InvalidArgument);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{matrix},
                      std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT(message_of<InvalidArgument>([&] { Muon(groups, MuonOptions()); }),
              HasSubstr("options of group 0 are another optimizer's"));
}

}  // namespace
}  // namespace lockstep::inline v0::optim::muon_test
