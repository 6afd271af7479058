#include "lockstep/data/loader.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::inline v0::data {
namespace loader_test {

using Indices = std::vector<int64_t>;

// Its batches are the indices themselves; it records what was loaded and can be made to fail.
struct Numbers {
  int64_t count = 0;
  int64_t fails_at = -1;
  mutable std::mutex mutex;
  mutable std::multiset<int64_t> loaded;

  explicit Numbers(int64_t n, int64_t bad = -1) : count(n), fails_at(bad) {}
  int64_t size() const { return count; }
  Indices batch(std::span<const int64_t> indices) const {
    if (indices.front() % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    const std::lock_guard lock(mutex);
    for (const int64_t index : indices) {
      if (index == fails_at) throw DataError("sample " + std::to_string(index) + " cannot be read");
      loaded.insert(index);
    }
    return {indices.begin(), indices.end()};
  }
};

static_assert(Dataset<Numbers> && Dataset<ImageDataset>);
static_assert(std::input_iterator<Loader<Numbers>::Iterator>);
static_assert(!std::is_constructible_v<Loader<Numbers>, Numbers&&, const Sampler&>,
              "a temporary would dangle");

template <class L>
std::vector<Indices> drain(L& loader) {
  std::vector<Indices> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

TEST(Loader, GivesTheSamplersOrderWhateverTheWorkers) {
  const Numbers numbers(103);
  DistributedSampler sampler(103, 2, 1, {.seed = 9});
  for (const int64_t epoch : {0, 1, 4}) {
    sampler.set_epoch(epoch);
    std::vector<Indices> expected;
    const Indices all = sampler.indices();
    for (size_t i = 0; i < all.size(); i += 8) {
      expected.emplace_back(all.begin() + i, all.begin() + std::min(i + 8, all.size()));
    }
    for (const int workers : {0, 1, 2, 4}) {
      for (const int prefetch : {1, 3}) {
        Loader loader(numbers, sampler,
                      {.batch_size = 8, .num_workers = workers, .prefetch = prefetch});
        EXPECT_EQ(loader.batches(), 7);
        EXPECT_EQ(drain(loader), expected);
      }
    }
  }
}

TEST(Loader, FollowsSetEpoch) {
  const Numbers numbers(50);
  DistributedSampler sampler(50, 1, 0);
  Loader loader(numbers, sampler, {.batch_size = 50});
  const auto first = drain(loader);
  EXPECT_EQ(drain(loader), first);
  sampler.set_epoch(1);
  EXPECT_NE(drain(loader), first);
}

TEST(Loader, CountsBatches) {
  const Numbers numbers(20);
  SequentialSampler sampler(20);
  EXPECT_EQ(Loader(numbers, sampler, {.batch_size = 7}).batches(), 3);
  EXPECT_EQ(Loader(numbers, sampler, {.batch_size = 7, .drop_last = true}).batches(), 2);
  EXPECT_EQ(Loader(numbers, sampler, {.batch_size = 10}).batches(), 2);
  Loader dropping(numbers, sampler, {.batch_size = 7, .drop_last = true});
  EXPECT_EQ(drain(dropping).back(), (Indices{7, 8, 9, 10, 11, 12, 13}));
  // A shard of evaluation may be empty.
  ShardedSequentialSampler none(2, 3, 2);
  Loader empty(numbers, none, {.batch_size = 4});
  EXPECT_EQ(empty.batches(), 0);
  EXPECT_TRUE(drain(empty).empty());
}

TEST(Loader, SkipResumesWithoutLoading) {
  for (const int workers : {0, 2}) {
    const Numbers numbers(20);
    SequentialSampler sampler(20);
    Loader loader(numbers, sampler, {.batch_size = 4, .num_workers = workers});
    loader.skip(3);
    EXPECT_EQ(drain(loader), (std::vector<Indices>{{12, 13, 14, 15}, {16, 17, 18, 19}}));
    EXPECT_EQ(numbers.loaded.size(), 8U);
    EXPECT_EQ(*numbers.loaded.begin(), 12);
    EXPECT_EQ(drain(loader).size(), 5U);  // the skip applied to one loop
    loader.skip(5);
    EXPECT_TRUE(drain(loader).empty());
    EXPECT_THROW(loader.skip(6), InvalidArgument);
    EXPECT_THROW(loader.skip(-1), InvalidArgument);
  }
}

TEST(Loader, BreakJoinsTheWorkers) {
  for (const int workers : {0, 1, 3}) {
    const Numbers numbers(1000);
    SequentialSampler sampler(1000);
    Loader loader(numbers, sampler, {.batch_size = 2, .num_workers = workers, .prefetch = 2});
    for (int round = 0; round < 20; ++round) {
      int seen = 0;
      for (auto& batch : loader) {
        EXPECT_EQ(batch[0], 2 * seen);
        if (++seen == 3) break;
      }
    }
    const size_t after_break = numbers.loaded.size();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(numbers.loaded.size(), after_break);
  }
}

TEST(Loader, ThrowsWhatTheDataSetThrew) {
  for (const int workers : {0, 1, 3}) {
    const Numbers numbers(100, 41);
    SequentialSampler sampler(100);
    Loader loader(numbers, sampler, {.batch_size = 10, .num_workers = workers});
    int seen = 0;
    const auto line = message_of<DataError>([&] {
      for (auto& batch : loader) {
        EXPECT_EQ(batch.size(), 10U);
        ++seen;
      }
    });
    EXPECT_EQ(line, "sample 41 cannot be read");
    EXPECT_EQ(seen, 4);
    loader.skip(5);  // and it can be used again
    EXPECT_EQ(drain(loader).size(), 5U);
  }
}

TEST(Loader, OneLoopAtATime) {
  const Numbers numbers(10);
  SequentialSampler sampler(10);
  Loader loader(numbers, sampler, {.batch_size = 5});
  for (auto& batch : loader) {
    EXPECT_EQ(batch.size(), 5U);
    EXPECT_THROW((void)loader.begin(), InvalidArgument);
  }
  EXPECT_EQ(drain(loader).size(), 2U);
}

TEST(Loader, RefusesBadOptions) {
  const Numbers numbers(10);
  SequentialSampler sampler(10);
  EXPECT_THROW(Loader(numbers, sampler, {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(Loader(numbers, sampler, {.num_workers = -1}), InvalidArgument);
  EXPECT_THROW(Loader(numbers, sampler, {.num_workers = 257}), InvalidArgument);
  EXPECT_THROW(Loader(numbers, sampler, {.prefetch = 0}), InvalidArgument);
  EXPECT_THROW(Loader(numbers, sampler, {.batch_size = 11, .drop_last = true}), InvalidArgument);
}

TEST(Loader, BindsImageAndLabel) {
  const auto images = torch::arange(6 * 4, torch::kByte).view({6, 1, 2, 2});
  const ImageDataset dataset(images, torch::arange(6), {0}, {1});
  SequentialSampler sampler(6);
  Loader loader(dataset, sampler, {.batch_size = 4, .num_workers = 2});
  std::vector<at::Tensor> inputs, targets;
  for (auto& [image, label] : loader) {
    inputs.push_back(image);
    targets.push_back(std::move(label));
  }
  EXPECT_TRUE(torch::equal(torch::cat(inputs), images.to(torch::kFloat) / 255));
  EXPECT_TRUE(torch::equal(torch::cat(targets), torch::arange(6)));
}

}  // namespace loader_test
}  // namespace lockstep::inline v0::data
