#include "lockstep/data/step_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data::step_sampler_test {

using Indices = std::vector<int64_t>;

// The real samples of each step, of all ranks together.
std::vector<Indices> steps_of(int64_t samples, int64_t ranks, int64_t step_samples) {
  std::vector<Indices> steps;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    StepSampler sampler(samples, ranks, rank, step_samples, {.seed = 6});
    sampler.set_epoch(2);
    const Indices mine = sampler.indices();
    EXPECT_EQ(sampler.size(), static_cast<int64_t>(mine.size()));
    EXPECT_EQ((sampler.size() - 1) / sampler.batch_size() + 1, sampler.steps());
    steps.resize(static_cast<size_t>(sampler.steps()));
    for (int64_t step = 0; step < sampler.steps(); ++step) {
      Indices& all = steps[static_cast<size_t>(step)];
      const auto first = mine.begin() + step * sampler.batch_size();
      all.insert(all.end(), first, first + sampler.own(step));
    }
  }
  for (Indices& step : steps) std::sort(step.begin(), step.end());
  return steps;
}

TEST(StepSampler, AStepHasTheSameSamplesOnAnyNumberOfRanks) {
  constexpr int64_t kSamples = 53;
  for (const int64_t step : {1, 8, 50, 53, 60}) {
    const auto alone = steps_of(kSamples, 1, step);
    EXPECT_EQ(static_cast<int64_t>(alone.size()), (kSamples + step - 1) / step);
    std::set<int64_t> seen;
    for (const Indices& samples : alone) seen.insert(samples.begin(), samples.end());
    EXPECT_EQ(static_cast<int64_t>(seen.size()), kSamples) << "each once";
    for (const int64_t ranks : {2, 3, 5, 7, 13})
      EXPECT_EQ(steps_of(kSamples, ranks, step), alone) << step << " on " << ranks;
  }
}

TEST(StepSampler, WhereRanksShareEquallyItIsADistributedSampler) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    const DistributedSamplerOptions options{.seed = 6};
    DistributedSampler plain(48, 4, rank, options);
    StepSampler steps(48, 4, rank, 8, options);
    EXPECT_EQ(steps.indices(), plain.indices());
    EXPECT_EQ(steps.batch_size(), 2);
  }
}

TEST(StepSampler, ARankWithoutASampleLoadsOneThatDoesNotCount) {
  const StepSampler last(10, 4, 3, 2);
  EXPECT_EQ(last.own(0), 0);
  EXPECT_EQ(last.batch_size(), 1);
  EXPECT_EQ(last.size(), 5);
}

TEST(StepSampler, TheLargestBatchIsTheSameOnAllRanks) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(StepSampler(50, 3, rank, 8).largest(), 3);
    EXPECT_EQ(StepSampler(5, 3, rank, 8).largest(), 2) << "there is one step, of five";
  }
}

TEST(StepSampler, RefusesNonsense) {
  EXPECT_THROW(StepSampler(0, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(StepSampler(8, 2, 2, 1), InvalidArgument);
  EXPECT_THROW(StepSampler(8, 2, 0, 0), InvalidArgument);
  EXPECT_THROW(StepSampler(8, 2, 0, 9, {.drop_last = true}), InvalidArgument);
  EXPECT_EQ(StepSampler(9, 2, 0, 4, {.drop_last = true}).steps(), 2);
}

}  // namespace lockstep::inline v0::data::step_sampler_test
