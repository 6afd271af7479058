// Expected factors: tests/oracle/schedules.py with transformers 5.23 and PyTorch 2.13.
#include "lockstep/optim/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim::schedule_test {

constexpr std::array<int64_t, 11> kSteps = {0, 1, 2, 4, 5, 6, 10, 16, 19, 20, 25};
using Factors = std::array<double, kSteps.size()>;

constexpr Factors kConstantWarmup5 = {0.0, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0};
constexpr Factors kLinear20 = {1.0, 0.95, 0.9, 0.8, 0.75, 0.7, 0.5, 0.2, 0.05, 0.0, 0.0};
constexpr Factors kLinear20Warmup5 = {0.0,
                                      0.2,
                                      0.4,
                                      0.8,
                                      1.0,
                                      0.9333333333333333,
                                      0.6666666666666666,
                                      0.26666666666666666,
                                      0.06666666666666667,
                                      0.0,
                                      0.0};
// The last factor of each is step 25 of 20, at which Lockstep stays at the floor.
constexpr Factors kCosine20Warmup5 = {
    0.0, 0.2, 0.4, 0.8, 1.0, 0.9890738003669028, 0.75, 0.16543469682057105, 0.010926199633097156,
    0.0, 0.0};
constexpr Factors kCosine20Warmup5OneWave = {0.0,
                                             0.2,
                                             0.4,
                                             0.8,
                                             1.0,
                                             0.9567727288213004,
                                             0.2500000000000001,
                                             0.4477357683661729,
                                             0.9567727288213005,
                                             1.0,
                                             0.2500000000000004};
constexpr Factors kCosine20Warmup5Floor = {
    0.0, 0.2, 0.4, 0.8, 1.0, 0.9901664203302125, 0.775, 0.24889122713851394, 0.10983357966978745,
    0.1, 0.1};
constexpr Factors kCosineAnnealing20Eta = {1.0,
                                           0.994459753267812,
                                           0.9779754323328191,
                                           0.9140576474687263,
                                           0.8681980515339464,
                                           0.8145033635316129,
                                           0.5500000000000002,
                                           0.18594235253127378,
                                           0.10554024673218806,
                                           0.1,
                                           0.1};
constexpr Factors kLinearLrFromQuarter = {0.25, 0.4, 0.55, 0.85, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0};

void expect_factors(const char* what, const Schedule& schedule, const Factors& expected) {
  for (size_t i = 0; i < kSteps.size(); ++i)
    EXPECT_NEAR(schedule.factor(kSteps[i]), expected[i], 1e-14) << what << ", step " << kSteps[i];
}

TEST(Schedule, IsThatOfTransformersAndPyTorch) {
  expect_factors("constant", constant({.warmup = {.steps = 5}}), kConstantWarmup5);
  expect_factors("linear", linear({.total_steps = 20}), kLinear20);
  expect_factors("linear, warm-up", linear({.total_steps = 20, .warmup = {.steps = 5}}),
                 kLinear20Warmup5);
  expect_factors("cosine", cosine({.total_steps = 20, .warmup = {.steps = 5}}), kCosine20Warmup5);
  expect_factors("cosine, one wave",
                 cosine({.total_steps = 20, .warmup = {.steps = 5}, .cycles = 1}),
                 kCosine20Warmup5OneWave);
  expect_factors("cosine, floor", cosine({.total_steps = 20, .warmup = {.steps = 5}, .floor = 0.1}),
                 kCosine20Warmup5Floor);
  expect_factors("CosineAnnealingLR", cosine({.total_steps = 20, .floor = 0.1}),
                 kCosineAnnealing20Eta);
  expect_factors("LinearLR", constant({.warmup = {.steps = 5, .from = 0.25}}),
                 kLinearLrFromQuarter);
}

TEST(Schedule, TakesAWarmupByRatio) {
  expect_factors("linear", linear({.total_steps = 20, .warmup = {.ratio = 0.25}}),
                 kLinear20Warmup5);
  EXPECT_EQ(linear({.total_steps = 21, .warmup = {.ratio = 0.1}}).warmup_steps(), 3);  // rounded up
  EXPECT_EQ(linear({.total_steps = 20, .warmup = {.ratio = 0}}).warmup_steps(), 0);
  EXPECT_EQ(linear({.total_steps = 20, .warmup = {.steps = 4, .ratio = 0.5}}).warmup_steps(), 4);
  EXPECT_EQ(constant().factor(123456), 1.0);
}

TEST(Schedule, MayBeAllWarmup) {
  const Schedule schedule = cosine({.total_steps = 5, .warmup = {.ratio = 1}});
  EXPECT_EQ(schedule.factor(4), 0.8);
  EXPECT_TRUE(std::isfinite(schedule.factor(5)));
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_THROW(linear({}), InvalidArgument);
  EXPECT_THROW(cosine({.total_steps = -1}), InvalidArgument);
  EXPECT_THROW(linear({.total_steps = 5, .warmup = {.steps = 6}}), InvalidArgument);
  EXPECT_THROW(linear({.total_steps = 5, .warmup = {.ratio = 1.5}}), InvalidArgument);
  EXPECT_THROW(linear({.total_steps = 5, .warmup = {.ratio = std::nan("")}}), InvalidArgument);
  EXPECT_THROW(constant({.warmup = {.ratio = 0.1}}), InvalidArgument);
  EXPECT_THROW(linear({.total_steps = 5, .floor = -0.1}), InvalidArgument);
  EXPECT_THROW(cosine({.total_steps = 5, .cycles = 0}), InvalidArgument);
  EXPECT_THROW(constant().factor(-1), InvalidArgument);
}

TEST(ScaledLearningRate, FollowsTheWorld) {
  EXPECT_EQ(scaled_learning_rate(0.1, 8), 0.8);
  EXPECT_EQ(scaled_learning_rate(0.1, 4, Scaling::kSquareRoot), 0.2);
  EXPECT_EQ(scaled_learning_rate(0.1, 8, Scaling::kNone), 0.1);
  EXPECT_THROW(scaled_learning_rate(0.1, 0), InvalidArgument);
  // Gradual warm-up: from one rank's rate to eight ranks' rate.
  const Schedule schedule = constant({.warmup = {.steps = 10, .from = 1.0 / 8}});
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 8) * schedule.factor(0), 0.1);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 8) * schedule.factor(10), 0.8);
}

}  // namespace lockstep::inline v0::optim::schedule_test
