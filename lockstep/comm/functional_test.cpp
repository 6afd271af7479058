#include "lockstep/comm/functional.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::functional_test {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// A collective in two forms: among ranks, and as one function of all ranks' inputs in one process.
struct Case {
  const char* name;
  std::function<std::vector<int64_t>(int rank, int size)> shape;  // of a rank's input
  std::function<at::Tensor(const Communicator&, const at::Tensor&)> ranks;
  std::function<Tensors(const Tensors&)> oracle;
  // Every rank's input affects its output: grad() for that input runs the whole backward.
  bool input_leads_to_output = true;
};

at::Tensor input_of(int rank, const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return at::linspace(0.1 + rank, 1.7 - 0.6 * rank, n, at::kDouble).sin().view(shape);
}

at::Tensor weight_of(int rank, const at::Tensor& like) {
  return at::linspace(0.5 - rank, 2.0, like.numel(), at::kDouble).cos().view(like.sizes());
}

// The loss is not linear, so that gradients depend on the results, and it differs on every rank.
at::Tensor loss_of(int rank, const at::Tensor& output) {
  return (output * output * output * weight_of(rank, output)).sum() + output.sum() * (rank + 1);
}

Tensors everywhere(const at::Tensor& tensor, size_t size) {
  return Tensors(size, tensor);
}

at::Tensor sum(const Tensors& xs) {
  return at::stack(xs).sum(0);
}

at::Tensor part(const at::Tensor& whole, size_t r, size_t size) {
  return whole.chunk(static_cast<int64_t>(size))[r];
}

std::vector<Case> make_cases() {
  const auto same = [](int, int) { return std::vector<int64_t>{3, 2}; };
  const auto whole = [](int, int size) { return std::vector<int64_t>{2 * size, 3}; };
  const auto ragged = [](int rank, int) { return std::vector<int64_t>{rank + 1, 2}; };
  const auto ragged_whole = [](int, int size) {
    return std::vector<int64_t>{size * (size + 1) / 2, 2};
  };
  const auto ragged_counts = [](int size) {
    std::vector<int64_t> counts;
    for (int r = 0; r < size; ++r) counts.push_back(r + 1);
    return counts;
  };
  std::vector<Case> cases;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    const bool avg = op == ReduceOp::kAvg;
    const auto reduced = [avg](const Tensors& xs) {
      return avg ? sum(xs) / static_cast<double>(xs.size()) : sum(xs);
    };
    cases.push_back({avg ? "all_reduce avg" : "all_reduce sum", same,
                     [op](auto& c, auto& x) { return functional::all_reduce(c, x, op); },
                     [reduced](const Tensors& xs) { return everywhere(reduced(xs), xs.size()); }});
    cases.push_back({avg ? "reduce avg" : "reduce sum", same,
                     [op](auto& c, auto& x) { return functional::reduce(c, x, 1, op); },
                     [reduced](const Tensors& xs) {
                       Tensors out = everywhere(at::zeros_like(xs[0]), xs.size());
                       out[1] = reduced(xs);
                       return out;
                     }});
    cases.push_back({avg ? "reduce_scatter avg" : "reduce_scatter sum", whole,
                     [op](auto& c, auto& x) { return functional::reduce_scatter(c, x, op); },
                     [reduced](const Tensors& xs) {
                       Tensors out;
                       for (size_t r = 0; r < xs.size(); ++r)
                         out.push_back(part(reduced(xs), r, xs.size()));
                       return out;
                     }});
    cases.push_back({avg ? "reduce_scatterv avg" : "reduce_scatterv sum", ragged_whole,
                     [op, ragged_counts](auto& c, auto& x) {
                       return functional::reduce_scatterv(c, x, ragged_counts(c.size()), op);
                     },
                     [reduced, ragged_counts](const Tensors& xs) {
                       return reduced(xs).split_with_sizes(
                           ragged_counts(static_cast<int>(xs.size())));
                     }});
  }
  cases.push_back(
      {"all_reduce max", same,
       [](auto& c, auto& x) { return functional::all_reduce(c, x, ReduceOp::kMax); },
       [](const Tensors& xs) { return everywhere(at::amax(at::stack(xs), 0), xs.size()); }});
  cases.push_back({"all_reduce min of equals", [](int, int) { return std::vector<int64_t>{4}; },
                   [](auto& c, auto& x) {
                     // Elements 2 and 3 are equal on all ranks.
                     return functional::all_reduce(
                         c, at::cat({x.slice(0, 0, 2), x.slice(0, 2, 4) * 0 + 0.25}),
                         ReduceOp::kMin);
                   },
                   [](const Tensors& xs) {
                     Tensors ys;
                     for (const at::Tensor& x : xs)
                       ys.push_back(at::cat({x.slice(0, 0, 2), x.slice(0, 2, 4) * 0 + 0.25}));
                     return everywhere(at::amin(at::stack(ys), 0), xs.size());
                   }});
  cases.push_back({"all_gather", same,
                   [](auto& c, auto& x) { return functional::all_gather(c, x); },
                   [](const Tensors& xs) { return everywhere(at::cat(xs), xs.size()); }});
  cases.push_back({"all_gather of scalars", [](int, int) { return std::vector<int64_t>{}; },
                   [](auto& c, auto& x) { return functional::all_gather(c, x); },
                   [](const Tensors& xs) { return everywhere(at::stack(xs), xs.size()); }});
  cases.push_back({"all_gatherv", ragged,
                   [](auto& c, auto& x) { return functional::all_gatherv(c, x); },
                   [](const Tensors& xs) { return everywhere(at::cat(xs), xs.size()); }});
  cases.push_back({"broadcast", same,
                   [](auto& c, auto& x) { return functional::broadcast(c, x, 1); },
                   [](const Tensors& xs) { return everywhere(xs[1], xs.size()); }});
  cases.push_back({"gather", same, [](auto& c, auto& x) { return functional::gather(c, x, 1); },
                   [](const Tensors& xs) {
                     Tensors out = everywhere(at::zeros_like(at::cat(xs)), xs.size());
                     out[1] = at::cat(xs);
                     return out;
                   }});
  cases.push_back({"scatter", whole,
                   [](auto& c, auto& x) {
                     return functional::scatter(c, at::zeros({2, 3}, at::kDouble),
                                                c.rank() == 0 ? x : at::Tensor(), 0);
                   },
                   [](const Tensors& xs) {
                     Tensors out;
                     for (size_t r = 0; r < xs.size(); ++r)
                       out.push_back(part(xs[0], r, xs.size()));
                     return out;
                   },
                   false});
  cases.push_back({"all_to_all", whole,
                   [](auto& c, auto& x) { return functional::all_to_all(c, x); },
                   [](const Tensors& xs) {
                     Tensors out;
                     for (size_t r = 0; r < xs.size(); ++r) {
                       Tensors parts;
                       for (const at::Tensor& x : xs) parts.push_back(part(x, r, xs.size()));
                       out.push_back(at::cat(parts));
                     }
                     return out;
                   }});
  cases.push_back({"all_to_allv", ragged_whole,
                   [ragged_counts](auto& c, auto& x) {
                     return functional::all_to_allv(c, x, ragged_counts(c.size()));
                   },
                   [ragged_counts](const Tensors& xs) {
                     Tensors out;
                     for (size_t r = 0; r < xs.size(); ++r) {
                       Tensors parts;
                       for (const at::Tensor& x : xs) {
                         parts.push_back(
                             x.split_with_sizes(ragged_counts(static_cast<int>(xs.size())))[r]);
                       }
                       out.push_back(at::cat(parts));
                     }
                     return out;
                   }});
  // Twice in one graph, one result feeding the other.
  cases.push_back({"all_reduce of all_gather", same,
                   [](auto& c, auto& x) {
                     const at::Tensor all = functional::all_gather(c, x * x);
                     return functional::all_reduce(c, all * all) + all.sin();
                   },
                   [](const Tensors& xs) {
                     Tensors squares;
                     for (const at::Tensor& x : xs) squares.push_back(x * x);
                     const at::Tensor all = at::cat(squares);
                     return everywhere(all * all * static_cast<double>(xs.size()) + all.sin(),
                                       xs.size());
                   }});
  // One after another around the ring.
  cases.push_back({"send and recv", same,
                   [](auto& c, auto& x) {
                     const int next = (c.rank() + 1) % c.size();
                     const int previous = (c.rank() + c.size() - 1) % c.size();
                     const at::Tensor token = functional::send(c, x * x, next, 3);
                     return functional::recv(c, x, previous, 3) + token.sum();
                   },
                   [](const Tensors& xs) {
                     Tensors out;
                     for (size_t r = 0; r < xs.size(); ++r) {
                       const at::Tensor& from = xs[(r + xs.size() - 1) % xs.size()];
                       out.push_back(from * from);
                     }
                     return out;
                   },
                   false});
  return cases;
}

struct Expected {
  Tensors outputs, gradients, second;
};

// All ranks' losses, summed in one process.
Expected compute_oracle(const Case& one, int size) {
  Tensors xs;
  for (int r = 0; r < size; ++r) xs.push_back(input_of(r, one.shape(r, size)).requires_grad_(true));
  Expected expected;
  expected.outputs = one.oracle(xs);
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int r = 0; r < size; ++r)
    total = total + loss_of(r, expected.outputs[static_cast<size_t>(r)]);
  expected.gradients = torch::autograd::grad({total}, xs, {}, true, true, true);
  at::Tensor penalty = at::zeros({}, at::kDouble);
  for (at::Tensor& g : expected.gradients) {
    if (!g.defined()) continue;
    penalty = penalty + (g * g).sum();
    g = g.detach();
  }
  expected.second = torch::autograd::grad({penalty}, xs, {}, false, false, true);
  return expected;
}

std::string compare(const at::Tensor& got, const at::Tensor& expected) {
  if (!expected.defined())
    return !got.defined() || got.abs().max().item<double>() == 0 ? "" : "a gradient, expected none";
  if (!got.defined()) return expected.abs().max().item<double>() == 0 ? "" : "no gradient";
  if (got.sizes() != expected.sizes()) return "another shape";
  const double error = (got - expected).abs().max().item<double>() /
                       std::max(1.0, expected.abs().max().item<double>());
  return error < 1e-12 ? "" : "off by " + std::to_string(error);
}

TEST(Functional, GradientsAreThoseOfTheSumOfAllLosses) {
  for (const Case& one : make_cases()) {
    for (const int size : {2, 3}) {
      const Expected expected = compute_oracle(one, size);
      testing::run_threads(size, [&](Communicator& comm) {
        const auto r = static_cast<size_t>(comm.rank());
        const at::Tensor x =
            input_of(comm.rank(), one.shape(comm.rank(), size)).requires_grad_(true);
        const at::Tensor y = one.ranks(comm, x);
        EXPECT_EQ(compare(y.detach(), expected.outputs[r].detach()), "") << one.name;
        EXPECT_TRUE(y.requires_grad());
        loss_of(comm.rank(), y).backward();
        EXPECT_EQ(compare(x.grad(), expected.gradients[r]), "")
            << "the gradient of " << one.name << " on rank " << r << " of " << size;
      });
    }
  }
}

TEST(Functional, DifferentiatesTwice) {
  for (const Case& one : make_cases()) {
    if (!one.input_leads_to_output) continue;
    const Expected expected = compute_oracle(one, 3);
    testing::run_threads(3, [&](Communicator& comm) {
      const auto r = static_cast<size_t>(comm.rank());
      const at::Tensor x = input_of(comm.rank(), one.shape(comm.rank(), 3)).requires_grad_(true);
      const at::Tensor loss = loss_of(comm.rank(), one.ranks(comm, x));
      const at::Tensor g = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
      (g * g).sum().backward();
      EXPECT_EQ(compare(x.grad(), expected.second[r]), "")
          << "the second derivative of " << one.name << " on rank " << r;
    });
  }
}

TEST(Functional, RanksWithoutAGradientTakePart) {
  testing::run_threads(3, [](Communicator& comm) {
    const at::Tensor x = at::ones({2}, at::kDouble);
    if (comm.rank() == 1) x.requires_grad_(true);
    functional::all_reduce(comm, x).sum().backward();
    EXPECT_EQ(x.grad().defined(), comm.rank() == 1);
    if (comm.rank() == 1) {
      EXPECT_EQ(x.grad()[0].item<double>(), 3.0);
    }
    EXPECT_EQ(comm.stats().collectives, 2u) << "forward and backward, on every rank";
  });
}

TEST(Functional, WithoutGradModeNothingIsRecorded) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({2}).requires_grad_(true);
    EXPECT_FALSE(functional::all_gather(comm, x).requires_grad());
    EXPECT_FALSE(functional::all_reduce(comm, x, ReduceOp::kMax).requires_grad());
    EXPECT_EQ(functional::all_reduce(comm, x, ReduceOp::kProduct)[0].item<float>(), 1.0f);
  });
}

TEST(Functional, IntegersAreCarriedWithoutGradients) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor x = at::full({2}, comm.rank() + 1, at::kLong);
    const at::Tensor sum = functional::all_reduce(comm, x, ReduceOp::kProduct);
    EXPECT_EQ(sum[0].item<int64_t>(), 2);
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_EQ(x[0].item<int64_t>(), comm.rank() + 1) << "the input stays";
  });
}

// Attention masks contain infinities: 0 times infinity must not enter the gradient.
TEST(Functional, MaxWithInfinities) {
  testing::run_threads(2, [](Communicator& comm) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const at::Tensor x =
        (comm.rank() == 0 ? at::full({1}, -kInf, at::kDouble) : at::full({1}, kInf, at::kDouble))
            .requires_grad_(true);
    const at::Tensor y = functional::all_reduce(comm, x, ReduceOp::kMax);
    EXPECT_EQ(y.item<double>(), kInf);
    y.backward(at::full({1}, 2.0, at::kDouble));
    EXPECT_EQ(x.grad().item<double>(), comm.rank() == 0 ? 0.0 : 4.0);
  });
}

TEST(Functional, BackwardOnAnotherThread) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
    const at::Tensor loss = functional::all_reduce(comm, x * x).sum();
    std::thread other([&] { loss.backward(); });
    other.join();
    EXPECT_EQ(x.grad()[0].item<double>(), 4.0);
  });
}

TEST(Functional, TheGraphKeepsTheGroupAlive) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
    const at::Tensor loss = functional::all_reduce(comm.duplicate(), x).sum();
    loss.backward();
    EXPECT_EQ(x.grad()[0].item<double>(), 2.0);
    comm.barrier();
  });
}

TEST(Functional, ErrorsComeOutOfBackwardAsTheyAre) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
    const at::Tensor loss = functional::all_reduce(comm, x).sum();
    std::string text = "no Mismatch";
    try {
      if (comm.rank() == 0) {
        loss.backward();
      } else {
        comm.barrier();
      }
      comm.barrier();
    } catch (const Mismatch& error) {
      text = error.what();
    }
    EXPECT_THAT(text, HasSubstr("rank 0: #2 all_reduce sum float64 x 3 at functional_test.cpp"));
  });
}

TEST(Functional, WhatHasNoGradientIsRefused) {
  testing::run_threads(1, [](Communicator& comm) {
    const at::Tensor x = at::ones({3});
    EXPECT_THROW(functional::all_reduce(comm, x, ReduceOp::kProduct), InvalidArgument);
    EXPECT_THROW(functional::reduce_scatter(comm, x, ReduceOp::kMax), InvalidArgument);
    EXPECT_THROW(functional::reduce(comm, x, 0, ReduceOp::kMin), InvalidArgument);
    EXPECT_THROW(functional::broadcast(comm, x, 1), InvalidArgument);
    EXPECT_THROW(functional::all_gather(comm, at::Tensor()), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::functional_test
