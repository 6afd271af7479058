#include "lockstep/parallel/tensor/tensor_regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::tensor_regions_test {
namespace {

using ::testing::HasSubstr;

// Whole numbers: sums are exact in every type.
at::Tensor numbers(int64_t rows, int64_t columns, int64_t from, at::ScalarType type) {
  return torch::arange(from, from + rows * columns, at::kDouble)
      .remainder(7)
      .sub(3)
      .view({rows, columns})
      .to(type);
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16};

TEST(TensorRegions, TwoProductsAreTheWholes) {
  for (const int size : {1, 2, 4}) {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor x = numbers(5, 8, 1, type), up = numbers(8, 8, 3, type),
                       down = numbers(6, 8, 2, type), dy = numbers(5, 6, 4, type);
      const auto of = [](const at::Tensor& t) {
        return t.to(at::kDouble, false, /*copy=*/true).requires_grad_();
      };
      const at::Tensor whole_x = of(x), whole_up = of(up), whole_down = of(down);
      const at::Tensor expected = whole_x.mm(whole_up.t()).relu().mm(whole_down.t());
      expected.backward(dy.to(at::kDouble));
      testing::run_threads(size, [&](Communicator& comm) {
        const int64_t width = 8 / size, first = width * comm.rank();
        const at::Tensor in = x.clone().requires_grad_();
        const at::Tensor a = up.narrow(0, first, width).clone().requires_grad_();
        const at::Tensor b = down.narrow(1, first, width).clone().requires_grad_();
        const at::Tensor y =
            reduce_from_parts(comm, copy_to_parts(comm, in).mm(a.t()).relu().mm(b.t()));
        y.backward(dy);
        // Half as many digits of bfloat16 round what is summed up.
        const double tolerance = type == at::kBFloat16 ? 0.02 : 0;
        const auto near = [&](const at::Tensor& found, const at::Tensor& of) {
          EXPECT_EQ(found.scalar_type(), type);
          EXPECT_LE((found.to(at::kDouble) - of).abs().max().item<double>(),
                    tolerance * of.abs().max().item<double>());
        };
        near(y, expected);
        near(in.grad(), whole_x.grad());
        near(a.grad(), whole_up.grad().narrow(0, first, width));
        near(b.grad(), whole_down.grad().narrow(1, first, width));
      });
    }
  }
}

TEST(TensorRegions, RowsAreGatheredAndScattered) {
  for (const at::ScalarType type : kTypes) {
    testing::run_threads(4, [&](Communicator& comm) {
      const int64_t rank = comm.rank();
      const at::Tensor mine = numbers(2, 3, rank * 6, type).requires_grad_();
      const at::Tensor all = gather_rows(comm, mine);
      EXPECT_TRUE(at::equal(all, numbers(8, 3, 0, type)));
      // Each part's gradient of all rows is its share.
      all.backward(numbers(8, 3, rank, type));
      at::Tensor expected = torch::zeros({2, 3}, type);
      for (int64_t part = 0; part < 4; ++part)
        expected += numbers(8, 3, part, type).narrow(0, rank * 2, 2);
      EXPECT_TRUE(at::equal(mine.grad(), expected));

      const at::Tensor shares = numbers(8, 3, rank, type).requires_grad_();
      const at::Tensor sums = scatter_rows(comm, shares);
      EXPECT_TRUE(at::equal(sums, expected));
      sums.backward(numbers(2, 3, rank * 6, type));
      EXPECT_TRUE(at::equal(shares.grad(), numbers(8, 3, 0, type)));
    });
  }
}

TEST(TensorRegions, ColumnsAreGatheredAndGivenBack) {
  const std::vector<int64_t> counts{3, 0, 4};
  for (const at::ScalarType type : kTypes) {
    testing::run_threads(3, [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const at::Tensor whole = numbers(5, 7, 0, type), dy = numbers(5, 7, 2, type);
      const int64_t first = rank == 0 ? 0 : 3;
      const at::Tensor mine = whole.narrow(1, first, counts[rank]).clone().requires_grad_();
      const at::Tensor all = gather_columns(comm, mine, counts);
      EXPECT_TRUE(at::equal(all, whole));
      EXPECT_TRUE(all.is_contiguous());
      all.backward(dy);
      EXPECT_TRUE(at::equal(mine.grad(), dy.narrow(1, first, counts[rank])));
    });
  }
}

// Used twice; and the gradient of a gradient, of (x w1 x w2 summed)^3.
TEST(TensorRegions, GradientsOfGradientsAreRight) {
  const at::Tensor values = torch::tensor({2.0, -1.0, 3.0, 0.5}, at::kDouble);
  const auto penalty = [](const at::Tensor& y, const at::Tensor& x) {
    const at::Tensor gradient =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return gradient.pow(2).sum();
  };
  const at::Tensor x = torch::tensor({1.5, -0.5}, at::kDouble).requires_grad_();
  const auto product = [](const at::Tensor& in, const at::Tensor& w) { return in.mul(w).sum(); };
  penalty(product(x, values.narrow(0, 0, 2)) + product(x, values.narrow(0, 2, 2)), x).backward();
  testing::run_threads(2, [&](Communicator& comm) {
    const at::Tensor mine = x.detach().clone().requires_grad_();
    const at::Tensor w = values.narrow(0, 2 * comm.rank(), 2);
    const at::Tensor y = reduce_from_parts(comm, product(copy_to_parts(comm, mine), w));
    penalty(y, mine).backward();
    EXPECT_LT((mine.grad() - x.grad()).abs().max().item<double>(), 1e-12);
  });
}

TEST(TensorRegions, OneRankSendsNothingNorDoesForwardWithoutSums) {
  testing::run_threads(1, [](Communicator& comm) {
    const at::Tensor x = torch::ones({2, 2}).requires_grad_();
    for (const at::Tensor& y :
         {copy_to_parts(comm, x), reduce_from_parts(comm, x), gather_rows(comm, x),
          scatter_rows(comm, x), gather_columns(comm, x, {2})})
      EXPECT_TRUE(y.is_same(x));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
  testing::run_threads(2, [](Communicator& comm) {
    copy_to_parts(comm, torch::ones({2, 2}).requires_grad_());
    EXPECT_EQ(comm.stats().collectives, 0u);
    reduce_from_parts(comm, torch::ones({2, 2}).requires_grad_()).sum().backward();
    EXPECT_EQ(comm.stats().collectives, 1u);
  });
}

TEST(TensorRegions, BadInputIsOneLineAndNothingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto line = [&](const auto& call) {
      const std::string text = message_of<InvalidArgument>(call);
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text;
    };
    EXPECT_THAT(
        line([&] { reduce_from_parts(comm, torch::ones({2}, at::kLong)); }),
        HasSubstr("reduce_from_parts: give a tensor of float32, float64 or bfloat16, not int64"));
    EXPECT_THAT(line([&] { copy_to_parts(comm, at::Tensor()); }), HasSubstr("an undefined one"));
    EXPECT_THAT(line([&] { scatter_rows(comm, torch::ones({3, 2})); }),
                HasSubstr("scatter_rows: 3 rows do not divide among 2 parts"));
    EXPECT_THAT(line([&] { gather_rows(comm, torch::ones({})); }), HasSubstr("has no rows"));
    EXPECT_THAT(line([&] { gather_columns(comm, torch::ones({3, 2}), {1, 1}); }),
                HasSubstr("[rows, counts[rank]]"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

TEST(TensorRegions, ARankOutOfStepIsNamedByItsRegion) {
  const auto says = [](const std::function<void(Communicator&)>& fn) {
    return message_of<Mismatch>([&] { testing::run_threads(2, fn); });
  };
  EXPECT_THAT(
      says([](Communicator& comm) {
        const at::Tensor x = torch::ones({2, 2}).requires_grad_();
        if (comm.rank() == 0)
          copy_to_parts(comm, x).sum().backward();
        else
          reduce_from_parts(comm, x);
      }),
      ::testing::AllOf(HasSubstr("copy_to_parts, backward"), HasSubstr("reduce_from_parts")));
  EXPECT_THAT(
      says([](Communicator& comm) { reduce_from_parts(comm, torch::ones({2 + comm.rank(), 2})); }),
      HasSubstr("reduce_from_parts"));
  EXPECT_THAT(says([](Communicator& comm) {
                const at::Tensor x = torch::ones({2, 2});
                comm.rank() == 0 ? gather_rows(comm, x) : scatter_rows(comm, x);
              }),
              HasSubstr("tensor_regions_test.cpp"));
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_regions_test
