// LAMB compared with algorithm 2 of the paper, written out in float64.
#include "lockstep/optim/lamb.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/optim/internal/test_parameters.h"

namespace lockstep::inline v0::optim::lamb_test {

using torch::optim::AdamWOptions;

struct Paper {
  std::vector<at::Tensor> x, m, v;
  int t = 0;

  explicit Paper(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      x.push_back(parameter.detach().to(at::kDouble).clone());
      m.push_back(torch::zeros_like(x.back()));
      v.push_back(torch::zeros_like(x.back()));
    }
  }
  void step(const std::vector<at::Tensor>& gradients, const AdamWOptions& options) {
    ++t;
    const auto [beta1, beta2] = options.betas();
    for (size_t i = 0; i < x.size(); ++i) {
      const at::Tensor g = gradients[i].to(at::kDouble);
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const at::Tensor r = (m[i] / (1 - std::pow(beta1, t))) /
                           ((v[i] / (1 - std::pow(beta2, t))).sqrt() + options.eps());
      const at::Tensor u = r + options.weight_decay() * x[i];
      const double x_norm = x[i].norm().item<double>(), u_norm = u.norm().item<double>();
      const double ratio = x_norm > 0 && u_norm > 0 ? x_norm / u_norm : 1;
      x[i] = x[i] - options.lr() * ratio * u;
    }
  }
};

void follows_the_paper(at::ScalarType dtype, double tolerance, FusedOptions fused) {
  auto parameters = test::parameters(dtype);
  parameters.push_back(torch::zeros({20}, dtype).set_requires_grad(true));  // ratio 1 at first
  const auto options = AdamWOptions(0.02).weight_decay(0.01).eps(1e-6);
  Paper paper(parameters);
  const std::vector<at::Tensor> start = paper.x;
  Lamb optimizer(parameters, options, fused);
  for (int step = 0; step < 100; ++step) {
    const auto gradients = test::gradients(parameters, step);
    test::give_gradients(parameters, gradients);
    optimizer.step();
    paper.step(gradients, options);
  }
  EXPECT_LT(test::relative_distance(parameters, paper.x), tolerance);
  EXPECT_GT(test::relative_distance(parameters, start), 1e-3);
}

TEST(Lamb, FollowsThePaper) {
  for (const bool flat : {false, true}) {
    follows_the_paper(at::kDouble, 1e-13, {flat});
    follows_the_paper(at::kFloat, 2e-6, {flat});
  }
}

TEST(Lamb, AParameterMovesByItsOwnSize) {
  // The ratio |x| / |u| makes each step lr * |x| long, whatever the gradient's size.
  auto small = torch::full({64}, 1e-3).set_requires_grad(true);
  auto large = torch::full({64}, 1e3).set_requires_grad(true);
  const auto before_small = small.detach().clone(), before_large = large.detach().clone();
  Lamb optimizer({small, large}, AdamWOptions(0.1).weight_decay(0).eps(1e-30));
  small.mutable_grad() = torch::full({64}, 1e5);
  large.mutable_grad() = torch::full({64}, 1e-5);
  optimizer.step();
  EXPECT_NEAR(((small - before_small).norm() / before_small.norm()).item<double>(), 0.1, 1e-5);
  EXPECT_NEAR(((large - before_large).norm() / before_large.norm()).item<double>(), 0.1, 1e-5);
}

TEST(Lamb, HasNoAmsgrad) {
  auto parameter = torch::ones({2}).set_requires_grad(true);
  EXPECT_THROW(Lamb({parameter}, AdamWOptions(0.1).amsgrad(true)), InvalidArgument);
}

}  // namespace lockstep::inline v0::optim::lamb_test
