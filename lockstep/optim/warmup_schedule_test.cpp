// Expected rates: tests/oracle/deepspeed_schedules.py with DeepSpeed 0.19.8.
#include "lockstep/optim/warmup_schedule.h"

#include <gtest/gtest.h>

#include <array>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim::warmup_schedule_test {
namespace {

constexpr double kRate = 0.1;
constexpr std::array<int64_t, 12> kSteps = {0, 1, 2, 3, 5, 6, 10, 11, 16, 20, 21, 25};
using Rates = std::array<double, kSteps.size()>;

constexpr Rates kWarmupLog10 = {0.0,
                                0.0,
                                0.030102999566398114,
                                0.04771212547196624,
                                0.06989700043360186,
                                0.07781512503836435,
                                0.09999999999999999,
                                0.1,
                                0.1,
                                0.1,
                                0.1,
                                0.1};
constexpr Rates kWarmupLinear10 = {0.01,
                                   0.01,
                                   0.014,
                                   0.018000000000000002,
                                   0.026000000000000002,
                                   0.03,
                                   0.046000000000000006,
                                   0.05,
                                   0.05,
                                   0.05,
                                   0.05,
                                   0.05};
constexpr Rates kDecayLog10Of20 = {0.0,
                                   0.0,
                                   0.00030102999566398113,
                                   0.0004771212547196624,
                                   0.0006989700043360187,
                                   0.0007781512503836435,
                                   0.0009999999999999998,
                                   0.001,
                                   0.0005,
                                   0.0001,
                                   0.0,
                                   0.0};
constexpr Rates kDecayLinear5Of20 = {
    0.01, 0.01, 0.028000000000000004, 0.046000000000000006, 0.082, 0.1, 0.076, 0.07, 0.04, 0.016,
    0.01, 0.01};
constexpr Rates kDecayWarmupOfOne = {0.0,
                                     0.0,
                                     0.001,
                                     0.001,
                                     0.0008888888888888888,
                                     0.0008333333333333334,
                                     0.0006111111111111112,
                                     0.0005555555555555556,
                                     0.0002777777777777778,
                                     5.555555555555555e-05,
                                     0.0,
                                     0.0};
constexpr Rates kCosineLog10Of20 = {0.0,
                                    0.0,
                                    0.030102999566398114,
                                    0.04771212547196624,
                                    0.06989700043360186,
                                    0.07781512503836435,
                                    0.09999999999999999,
                                    0.09755307053217621,
                                    0.03455569536622451,
                                    1e-05,
                                    1e-05,
                                    1e-05};
constexpr Rates kCosineLinear5Of20 = {0.0,
                                      0.025,
                                      0.04000000000000001,
                                      0.05500000000000001,
                                      0.08500000000000002,
                                      0.09901664203302125,
                                      0.07750000000000001,
                                      0.06890576474687264,
                                      0.024889122713851394,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.010000000000000002};

void expect_rates(const char* what, const WarmupSchedule& schedule, const Rates& expected) {
  for (size_t i = 0; i < kSteps.size(); ++i) {
    EXPECT_NEAR(warmup_rate(schedule, kRate, kSteps[i]), expected[i], 1e-15)
        << what << ", step " << kSteps[i];
  }
}

TEST(WarmupRates, WarmupIsDeepSpeeds) {
  expect_rates("log", {.warmup_num_steps = 10}, kWarmupLog10);
  expect_rates("linear",
               {.warmup_num_steps = 10,
                .warmup_type = WarmupShape::kLinear,
                .warmup_min_lr = 0.01,
                .warmup_max_lr = 0.05},
               kWarmupLinear10);
}

TEST(WarmupRates, WarmupDecayIsDeepSpeeds) {
  const auto decay = [](int64_t warmup) {
    return WarmupSchedule{.type = WarmupScheduleType::kWarmupDecay,
                          .total_num_steps = 20,
                          .warmup_num_steps = warmup};
  };
  expect_rates("log", decay(10), kDecayLog10Of20);
  expect_rates("one step", decay(1), kDecayWarmupOfOne);
  WarmupSchedule linear = decay(5);
  linear.warmup_type = WarmupShape::kLinear;
  linear.warmup_min_lr = 0.01;
  linear.warmup_max_lr = 0.1;
  expect_rates("linear", linear, kDecayLinear5Of20);
}

TEST(WarmupRates, WarmupCosineIsDeepSpeeds) {
  WarmupSchedule cosine{
      .type = WarmupScheduleType::kWarmupCosine, .total_num_steps = 20, .warmup_num_steps = 10};
  expect_rates("log", cosine, kCosineLog10Of20);
  cosine.warmup_num_steps = 5;
  cosine.warmup_type = WarmupShape::kLinear;
  cosine.warmup_min_ratio = 0.25;
  cosine.cos_min_ratio = 0.1;
  expect_rates("linear", cosine, kCosineLinear5Of20);
}

TEST(WarmupRates, AStepBeforeTheFirstIsRefused) {
  EXPECT_THROW(warmup_rate({}, kRate, -1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::optim::warmup_schedule_test
