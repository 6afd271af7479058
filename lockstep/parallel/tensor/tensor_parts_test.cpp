#include "lockstep/parallel/tensor/tensor_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::tensor_parts_test {
namespace {

using ::testing::HasSubstr;

const NamedShapes kShapes{{"words.weight", {7, 3}},
                          {"up.weight", {8, 3}},
                          {"up.bias", {8}},
                          {"down.weight", {3, 8}},
                          {"down.bias", {3}}};

TensorPlan plan() {
  return TensorPlan({{"words", TensorStyle::kVocabulary},
                     {"up", TensorStyle::kColumn},
                     {"down", TensorStyle::kRow}});
}

NamedTensors whole_of() {
  NamedTensors all;
  int64_t from = 1;
  for (const auto& [name, shape] : kShapes) {
    const int64_t count = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
    const at::Tensor value = torch::arange(from, from + count, at::kDouble).view(shape).clone();
    all.emplace_back(name, value.requires_grad_());
    all.back().second.mutable_grad() = value.detach().sin();
    from += count;
  }
  return all;
}

NamedTensors part_of(const TensorParts& parts) {
  NamedTensors mine;
  for (const auto& [name, shape] : kShapes)
    mine.emplace_back(
        name, torch::zeros(shape_of(parts.slice(name), shape), at::kDouble).requires_grad_());
  return mine;
}

at::Tensor slice_of(const at::Tensor& whole, const PartSlice& slice) {
  return slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

TEST(TensorParts, FilledCopiedAndGatheredAgain) {
  for (const int size : {1, 2, 4}) {
    const NamedTensors whole = whole_of();
    const ParameterParts values = [&](const std::string& name, int64_t begin,
                                      const at::Tensor& part) {
      EXPECT_TRUE(part.dim() == 1 && part.is_contiguous());
      for (const auto& [known, tensor] : whole)
        if (known == name) part.copy_(tensor.detach().view({-1}).narrow(0, begin, part.numel()));
    };
    testing::run_threads(size, [&](Communicator& comm) {
      TensorParts parts(comm, plan(), kShapes);
      const NamedTensors filled = part_of(parts), copied = part_of(parts);
      parts.fill(filled, values);
      parts.copy(copied, whole);
      for (size_t i = 0; i < whole.size(); ++i) {
        const at::Tensor expected = slice_of(whole[i].second, parts.slice(whole[i].first));
        EXPECT_TRUE(at::equal(filled[i].second, expected));
        EXPECT_TRUE(at::equal(copied[i].second, expected));
      }
      EXPECT_EQ(comm.stats().collectives, 0u);
      const int root = size - 1;
      const NamedTensors again = parts.gather(filled, root);
      ASSERT_EQ(again.size(), comm.rank() == root ? whole.size() : 0);
      for (size_t i = 0; i < again.size(); ++i) {
        EXPECT_EQ(again[i].first, whole[i].first);
        EXPECT_TRUE(at::equal(again[i].second, whole[i].second));
      }
    });
  }
}

TEST(TensorParts, TheNormIsTheWholes) {
  NamedTensors whole = whole_of();
  std::vector<at::Tensor> gradients;
  for (const auto& [name, tensor] : whole) gradients.push_back(tensor.grad().clone());
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : whole) all.push_back(tensor);
  const double norm = torch::nn::utils::clip_grad_norm_(all, 0.5);
  for (const int size : {1, 2, 4}) {
    testing::run_threads(size, [&](Communicator& comm) {
      TensorParts parts(comm, plan(), kShapes);
      const NamedTensors mine = part_of(parts);
      for (size_t i = 0; i < mine.size(); ++i)
        mine[i].second.mutable_grad() = slice_of(gradients[i], parts.slice(mine[i].first)).clone();
      EXPECT_NEAR(parts.gradient_norm(mine), norm, 1e-12);
      EXPECT_NEAR(parts.clip_gradients(mine, 1000), norm, 1e-12);  // nothing to clip
      EXPECT_TRUE(
          at::equal(mine[0].second.grad(), slice_of(gradients[0], parts.slice(mine[0].first))));
      EXPECT_NEAR(parts.clip_gradients(mine, 0.5), norm, 1e-12);
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_LT(
            (mine[i].second.grad() - slice_of(whole[i].second.grad(), parts.slice(mine[i].first)))
                .abs()
                .max()
                .item<double>(),
            1e-14);
      EXPECT_NEAR(parts.gradient_norm(mine), 0.5, 1e-6);
      EXPECT_EQ(comm.stats().of(Op::kAllReduce).bytes, 4 * 8u);
      mine[1].second.mutable_grad() = at::Tensor();  // counts as zeros
      EXPECT_LT(parts.gradient_norm(mine), 0.5);
    });
  }
}

TEST(TensorParts, BadInputIsOneLineAndNothingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    TensorParts parts(comm, plan(), kShapes);
    const NamedTensors mine = part_of(parts), whole = whole_of();
    const auto line = [&](const auto& call) {
      const std::string text = message_of<InvalidArgument>(call);
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text;
    };
    EXPECT_THAT(line([&] { TensorParts(comm, plan(), {{"up.weight", {7, 3}}}); }),
                HasSubstr("'up.weight' has 7 rows"));
    EXPECT_THAT(line([&] { parts.slice("up.scale"); }), HasSubstr("no parameter 'up.scale'"));
    EXPECT_THAT(line([&] { parts.gather(whole); }),
                HasSubstr("'words.weight' is [7, 3]; this part's is ["));
    EXPECT_THAT(line([&] { parts.copy(mine, {whole[0]}); }), HasSubstr("'up.weight' is missing"));
    EXPECT_THAT(line([&] { parts.clip_gradients(mine, 0); }), HasSubstr("max_norm is 0"));
    EXPECT_THAT(line([&] { parts.gather(mine, 2); }), HasSubstr("rank 2 of 2"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_parts_test
