// A loader that brings its batches to a device.
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/device/stream.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSamples = 22;
constexpr int64_t kBatch = 4;

at::Tensor rows_of(std::span<const int64_t> indices) {
  return at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
}

struct Numbers {
  int64_t size() const { return kSamples; }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows = rows_of(indices);
    return {rows.to(at::kFloat).unsqueeze(1).mul(at::arange(3)), rows};
  }
};

// Says nothing of its tensors.
struct Mute {
  at::Tensor input;
};
struct MuteNumbers {
  int64_t size() const { return kSamples; }
  Mute batch(std::span<const int64_t> indices) const { return {rows_of(indices)}; }
};

class LoaderOnDevice : public WithoutRaces {};

TEST_F(LoaderOnDevice, TheHostNeverWaits) {
  const Numbers numbers;
  for (const int workers : {0, 1, 3}) {
    data::SequentialSampler sampler(kSamples);
    data::Loader loader(
        numbers, sampler,
        {.batch_size = kBatch, .num_workers = workers, .device = at::Device(at::kCUDA, 1)});
    const FakeCudaCounts before = cuda.counts();
    std::vector<at::Tensor> kept;
    at::Tensor sum;
    for (auto& [input, target] : loader) {
      EXPECT_EQ(input.device(), at::Device(at::kCUDA, 1));
      const at::Tensor more = input.sum().add(target.sum());
      sum = sum.defined() ? sum.add(more) : more;
      kept.push_back(target);
    }
    const FakeCudaCounts counts = cuda.counts() - before;
    EXPECT_EQ(counts.stops(), 0) << counts.text();
    // Columns 0, 1, 2 times the number, and the number.
    EXPECT_EQ(sum.item<double>(), 4.0 * kSamples * (kSamples - 1) / 2) << workers << " workers";
    EXPECT_TRUE(at::cat(kept).cpu().equal(at::arange(kSamples))) << "in order, and still there";
  }
}

TEST_F(LoaderOnDevice, ALoopOnAnotherStreamWaitsForItsBatches) {
  const Numbers numbers;
  data::SequentialSampler sampler(kSamples);
  data::Loader loader(numbers, sampler, {.batch_size = kBatch, .device = at::Device(at::kCUDA, 0)});
  const c10::Stream side = device::side_stream(at::Device(at::kCUDA, 0));
  at::Tensor sum;
  {
    const c10::StreamGuard on_side(side);
    for (auto& [input, target] : loader) sum = sum.defined() ? sum.add(target.sum()) : target.sum();
  }
  device::order(side, device::current_stream(at::Device(at::kCUDA, 0)));
  EXPECT_EQ(sum.item<int64_t>(), kSamples * (kSamples - 1) / 2);
}

TEST_F(LoaderOnDevice, GathersThere) {
  const Numbers numbers;
  data::SequentialSampler sampler(kSamples);
  const data::Loader loader(numbers, sampler,
                            {.batch_size = kBatch, .device = at::Device(at::kCUDA, 2)});
  const data::Batch batch = loader.gather(std::vector<int64_t>{3, 5});
  EXPECT_EQ(batch.target.device(), at::Device(at::kCUDA, 2));
  EXPECT_TRUE(batch.target.cpu().equal(at::tensor({3, 5}, at::kLong)));
}

TEST_F(LoaderOnDevice, ABatchWhoseTensorsAreNotKnownIsRefused) {
  const MuteNumbers numbers;
  data::SequentialSampler sampler(kSamples);
  data::Loader loader(numbers, sampler, {.batch_size = kBatch, .device = at::Device(at::kCUDA, 0)});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                for (const Mute& batch : loader) (void)batch;
              }),
              AllOf(HasSubstr("Mute"), HasSubstr("tensors()")));
}

TEST_F(LoaderOnDevice, ADeviceThatIsNotThereIsRefused) {
  const Numbers numbers;
  data::SequentialSampler sampler(kSamples);
  data::Loader loader(numbers, sampler, {.batch_size = kBatch, .device = at::Device(at::kCUDA, 7)});
  EXPECT_THROW((void)loader.begin(), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
