#include "lockstep/replicas/average_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::average_gradients_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Parameters of many shapes: short ones, some above the limit for a bucket, of two dtypes, none
// contiguous, of no element.
NamedTensors parameters() {
  NamedTensors result = {
      {"scalar", torch::ones({})},           {"matrix", torch::ones({5, 7})},
      {"long", torch::ones({600, 700})},     {"double", torch::ones({33}, torch::kDouble)},
      {"turned", torch::ones({40, 30}).t()}, {"empty", torch::ones({0, 3})},
      {"last", torch::ones({3, 3, 3, 3})}};
  for (auto& [name, tensor] : result) tensor.set_requires_grad(true);
  return result;
}

// Whole numbers, so that sums and halves of them are exact.
at::Tensor gradient_of(const at::Tensor& parameter, int rank) {
  return torch::arange(parameter.numel(), parameter.options().requires_grad(false))
      .remainder(1000)
      .mul(rank + 1)
      .view(parameter.sizes());
}

at::Tensor mean_of(const at::Tensor& parameter, int ranks, int with_gradient) {
  at::Tensor sum = torch::zeros_like(parameter, torch::TensorOptions().requires_grad(false));
  for (int r = 0; r < with_gradient; ++r) sum += gradient_of(parameter, r);
  return sum.div(ranks);
}

void expect_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::equal(got, expected)) << what;
}

TEST(AverageGradients, ExactSumsOfEveryShape) {
  for (const int ranks : {1, 2, 4}) {
    for (const int64_t bucket_bytes : {int64_t{0}, int64_t{64}, int64_t{1000}, int64_t{25} << 20}) {
      testing::run_threads(ranks, [&](Communicator& comm) {
        const NamedTensors own = parameters();
        for (const auto& [name, tensor] : own)
          at::Tensor(tensor).mutable_grad() = gradient_of(tensor, comm.rank());
        average_gradients(own, comm, {.bucket_bytes = bucket_bytes});
        for (const auto& [name, tensor] : own)
          expect_equal(tensor.grad(), mean_of(tensor, ranks, ranks), name);
      });
    }
  }
}

// More than one exchange of flags, and more buckets than are under way at once.
TEST(AverageGradients, ThousandsOfParameters) {
  testing::run_threads(2, [](Communicator& comm) {
    NamedTensors own;
    for (int i = 0; i < 1500; ++i) {
      at::Tensor tensor = torch::ones({1 + i % 7}).set_requires_grad(true);
      if (i % 3 != 1) tensor.mutable_grad() = gradient_of(tensor, comm.rank());
      own.emplace_back("p" + std::to_string(i), tensor);
    }
    average_gradients(own, comm, {.bucket_bytes = 2048});
    for (int i = 0; i < 1500; ++i) {
      const at::Tensor& tensor = own[static_cast<size_t>(i)].second;
      if (i % 3 == 1)
        EXPECT_FALSE(tensor.grad().defined()) << i;
      else
        expect_equal(tensor.grad(), mean_of(tensor, 2, 2), std::to_string(i));
    }
  });
}

TEST(AverageGradients, ARankWithoutSamplesCountsAsZero) {
  for (const int64_t bucket_bytes : {int64_t{0}, int64_t{1} << 20}) {
    testing::run_threads(2, [&](Communicator& comm) {
      const NamedTensors own = parameters();
      for (const auto& [name, tensor] : own) {
        if (comm.rank() == 0 && name != "last")
          at::Tensor(tensor).mutable_grad() = gradient_of(tensor, 0);
      }
      average_gradients(own, comm, {.bucket_bytes = bucket_bytes});
      for (const auto& [name, tensor] : own) {
        if (name == "last")
          EXPECT_FALSE(tensor.grad().defined());
        else
          expect_equal(tensor.grad(), mean_of(tensor, 2, 1), name);
      }
    });
  }
}

// Fewer trainers than ranks: three of four, of which one has no samples.
TEST(AverageGradients, OverASubGroup) {
  testing::run_threads(4, [](Communicator& comm) {
    const bool trains = comm.rank() != 1;
    auto trainers = comm.split(trains ? 0 : -1, comm.rank());
    ASSERT_EQ(trainers.has_value(), trains);
    if (trains) {
      torch::nn::Linear net(3, 2);
      if (comm.rank() != 3) {
        for (auto& p : net->parameters())
          p.mutable_grad() = torch::full_like(p, 3.0 * (comm.rank() + 1));
      }
      average_gradients(net, *trainers);
      for (auto& p : net->parameters())  // (3 + 9 + 0) / 3
        expect_equal(p.grad(), torch::full_like(p, 4.0), "rank " + std::to_string(comm.rank()));
    }
    comm.barrier();
  });
}

TEST(AverageGradients, SparseOnesStaySparse) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    torch::nn::Embedding mixed(torch::nn::EmbeddingOptions(6, 2).sparse(comm.rank() == 0));
    const auto index = torch::tensor({comm.rank(), 3});
    (rows(index).sum() * 2 + mixed(index).sum() * 2).backward();
    NamedTensors own = {{"rows", rows->weight}, {"mixed", mixed->weight}};
    average_gradients(own, comm);
    const auto expected = torch::tensor({1., 1., 0., 2., 0., 0.}).view({6, 1}).expand({6, 2});
    EXPECT_TRUE(rows->weight.grad().is_sparse());
    expect_equal(rows->weight.grad().to_dense(), expected, "rows");
    EXPECT_FALSE(mixed->weight.grad().is_sparse());
    expect_equal(mixed->weight.grad(), expected, "mixed");
  });
}

TEST(AverageGradients, ARankWithoutASparseOneCountsAsZero) {
  testing::run_threads(3, [](Communicator& comm) {
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    if (comm.rank() != 1) rows(at::full({1}, comm.rank(), at::kLong)).sum().mul(3).backward();
    average_gradients(rows, comm);
    ASSERT_TRUE(rows->weight.grad().is_sparse());
    const at::Tensor dense = rows->weight.grad().to_dense();
    EXPECT_TRUE(dense[0].eq(1).all().item<bool>());
    EXPECT_TRUE(dense[1].eq(0).all().item<bool>());
    EXPECT_TRUE(dense[2].eq(1).all().item<bool>());
  });
}

TEST(AverageGradients, ATiedParameterCountsOnce) {
  testing::run_threads(2, [](Communicator& comm) {
    at::Tensor weight = torch::ones({4}).set_requires_grad(true);
    weight.mutable_grad() = gradient_of(weight, comm.rank());
    average_gradients({{"in", weight}, {"out", weight}}, comm);
    expect_equal(weight.grad(), mean_of(weight, 2, 2), "weight");
  });
}

std::string mismatch(Communicator& comm, const NamedTensors& own) {
  try {
    average_gradients(own, comm);
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no Mismatch";
}

TEST(AverageGradients, AnotherShapeIsNamedOnAllRanks) {
  testing::run_threads(3, [](Communicator& comm) {
    const int64_t rows = comm.rank() == 2 ? 5 : 4;
    at::Tensor other = torch::ones({rows, 2}).set_requires_grad(true);
    other.mutable_grad() = torch::ones({rows, 2});
    const at::Tensor same = torch::ones({3}).set_requires_grad(true);
    EXPECT_THAT(mismatch(comm, {{"first", same}, {"second.weight", other}}),
                AllOf(HasSubstr("second.weight"), HasSubstr("[4, 2]"), HasSubstr("[5, 2]"),
                      HasSubstr("rank 2")));
    expect_equal(other.grad(), torch::ones({rows, 2}), "unchanged");
    // One more, or none.
    NamedTensors own = {{"first", same}};
    if (comm.rank() == 1) own.emplace_back("more", torch::ones({1}).set_requires_grad(true));
    EXPECT_THAT(mismatch(comm, own), AllOf(HasSubstr("more"), HasSubstr("rank 1")));
    EXPECT_THAT(mismatch(comm, comm.rank() == 0 ? NamedTensors{} : own), HasSubstr("first"));
  });
}

TEST(AverageGradients, BadInputIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Sequential empty;
    try {
      average_gradients(empty, comm);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("no parameters"), HasSubstr("freeze")));
    }
    EXPECT_THROW(average_gradients(parameters(), comm, {.bucket_bytes = -1}), InvalidArgument);
    comm.barrier();  // the ranks are still in step
  });
}

}  // namespace
}  // namespace lockstep::inline v0::average_gradients_test
