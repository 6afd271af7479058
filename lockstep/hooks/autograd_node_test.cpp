#include "lockstep/hooks/autograd_node.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace lockstep::inline v0::hooks {
namespace {

using torch::autograd::variable_list;

// Its gradient is `factor` times that of its result.
class Times final : public torch::autograd::Node {
 public:
  Times(torch::autograd::edge_list next, double factor, int& alive)
      : Node(std::move(next)), factor_(factor), alive_(alive) {
    ++alive_;
  }
  ~Times() override { --alive_; }
  variable_list apply(variable_list&& gradients) override { return {gradients[0] * factor_}; }

 private:
  const double factor_;
  int& alive_;
};

TEST(AutogradNode, IsPartOfAGraphAndGoesWithIt) {
  int alive = 0;
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  {
    at::Tensor result = at::full({2}, 3.0);
    torch::autograd::set_history(
        result,
        make_node<Times>(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(leaf)},
                         4.0, alive));
    EXPECT_EQ(alive, 1);
    result.backward(at::full({2}, 2.0));
  }
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 8.0)));
}

// Nested destructors, one for each node, would need more stack than there is.
TEST(AutogradNode, ALongGraphIsTakenApart) {
  int alive = 0;
  NodePointer last;
  for (int i = 0; i < 300'000; ++i)
    last = make_node<Times>(torch::autograd::edge_list{torch::autograd::Edge(std::move(last), 0)},
                            1.0, alive);
  EXPECT_EQ(alive, 300'000);
  last = nullptr;
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace lockstep::inline v0::hooks
