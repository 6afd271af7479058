#include "lockstep/parallel/horovod/adasum.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::adasum_test {
namespace {

// The definition, in double.
torch::Tensor adasum(const torch::Tensor& a, const torch::Tensor& b) {
  const double ab = (a * b).sum().item<double>();
  const double aa = (a * a).sum().item<double>(), bb = (b * b).sum().item<double>();
  return (aa > 0 ? 1 - ab / (2 * aa) : 1.0) * a + (bb > 0 ? 1 - ab / (2 * bb) : 1.0) * b;
}

torch::Tensor definition(std::vector<torch::Tensor> vectors) {
  while (vectors.size() > 1) {
    std::vector<torch::Tensor> pairs;
    for (size_t i = 0; i < vectors.size(); i += 2)
      pairs.push_back(adasum(vectors[i], vectors[i + 1]));
    vectors = pairs;
  }
  return vectors[0];
}

// The gradient of rank `rank` for a layer.
torch::Tensor layer(int rank, int64_t numel, int which) {
  const auto x = torch::arange(numel, torch::kDouble);
  return torch::sin(x * (rank + 1) * 0.37 + which) + 0.2 * torch::cos(x * 0.11 * which);
}

const std::vector<int64_t> kSizes = {1, 7, 0, 64, 3, 1001};

TEST(Adasum, IsItsDefinitionLayerByLayer) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::mutex mutex;
    std::vector<std::vector<torch::Tensor>> results;
    testing::run_threads(ranks, [&](Communicator& comm) {
      std::vector<torch::Tensor> mine;
      for (size_t i = 0; i < kSizes.size(); ++i)
        mine.push_back(layer(comm.rank(), kSizes[i], static_cast<int>(i)));
      adasum_all_reduce(comm, mine);
      const std::lock_guard lock(mutex);
      results.push_back(mine);
    });
    for (size_t i = 0; i < kSizes.size(); ++i) {
      std::vector<torch::Tensor> all;
      for (int r = 0; r < ranks; ++r) all.push_back(layer(r, kSizes[i], static_cast<int>(i)));
      const auto expected = definition(all);
      for (const auto& got : results) {
        EXPECT_TRUE(torch::allclose(got[i], expected, 1e-12, 1e-12)) << ranks << " ranks, " << i;
        EXPECT_TRUE(torch::equal(got[i], results[0][i])) << "the same bits on every rank";
      }
    }
  }
}

TEST(Adasum, OfEqualVectorsIsTheVectorAndOfOrthogonalOnesTheSum) {
  testing::run_threads(4, [](Communicator& comm) {
    const auto equal = torch::linspace(-1, 1, 9, torch::kDouble);
    const auto orthogonal = torch::zeros({4}, torch::kDouble);
    orthogonal[comm.rank()] = 3;
    const auto alone =
        comm.rank() == 2 ? torch::ones({5}, torch::kDouble) * 7 : torch::zeros({5}, torch::kDouble);
    const std::vector<torch::Tensor> mine = {equal.clone(), orthogonal, alone};
    adasum_all_reduce(comm, mine);
    EXPECT_TRUE(torch::allclose(mine[0], equal, 1e-12, 1e-12));
    EXPECT_TRUE(torch::allclose(mine[1], torch::full({4}, 3.0, torch::kDouble)));
    EXPECT_TRUE(torch::equal(mine[2], torch::full({5}, 7.0, torch::kDouble)));
  });
}

TEST(Adasum, ShorterTypesAndStrides) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto double_of = [](int rank) { return layer(rank, 60, 1).view({6, 10}); };
    const auto expected = adasum(double_of(0).reshape({-1}), double_of(1).reshape({-1}));
    const auto of_float = double_of(comm.rank()).to(torch::kFloat);
    const auto of_half = double_of(comm.rank()).to(torch::kBFloat16);
    const auto strided = double_of(comm.rank()).t().contiguous().t();
    const std::vector<torch::Tensor> mine = {of_half, of_float, strided};
    adasum_all_reduce(comm, mine);
    const auto want = expected.view({6, 10});
    EXPECT_TRUE(torch::allclose(of_float.to(torch::kDouble), want, 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(of_half.to(torch::kDouble), want, 2e-2, 2e-2));
    EXPECT_TRUE(torch::allclose(strided, want, 1e-12, 1e-12));
  });
}

TEST(Adasum, RefusesWhatItIsNotFor) {
  testing::run_threads(3, [](Communicator& comm) {
    const std::vector<torch::Tensor> mine = {torch::ones({3})};
    try {
      adasum_all_reduce(comm, mine);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("power of two ranks, not 3"), std::string::npos);
    }
    EXPECT_THROW(AdasumStep(comm, mine), InvalidArgument);
  });
  testing::run_threads(2, [](Communicator& comm) {
    const std::vector<torch::Tensor> integers = {torch::ones({3}, torch::kLong)};
    EXPECT_THROW(adasum_all_reduce(comm, integers), InvalidArgument);
    const std::vector<torch::Tensor> different = {torch::ones({3 + comm.rank()})};
    EXPECT_THROW(adasum_all_reduce(comm, different), Mismatch);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::adasum_test
