#include "lockstep/parallel/zero/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::zero::loss_scaler_test {
namespace {

// The scales before each step; '!' is an overflow.
std::vector<double> scales(LossScaler& scaler, const std::string& steps) {
  std::vector<double> result;
  for (const char step : steps) {
    result.push_back(scaler.scale());
    scaler.update(step == '!');
  }
  result.push_back(scaler.scale());
  return result;
}

TEST(LossScaler, FallsAfterHysteresisAndGrowsAfterAWindow) {
  LossScaler scaler({.initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2});
  EXPECT_EQ(scales(scaler, "!!..........!!"),
            (std::vector<double>{16, 16, 8, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 32}));
}

TEST(LossScaler, AGoodStepRestoresConsecutiveHysteresis) {
  LossScaler kept({.initial_scale_power = 4, .loss_scale_window = 100, .hysteresis = 2});
  EXPECT_EQ(scales(kept, "!.!").back(), 8);
  LossScaler restored({.initial_scale_power = 4,
                       .loss_scale_window = 100,
                       .hysteresis = 2,
                       .consecutive_hysteresis = true});
  EXPECT_EQ(scales(restored, "!.!").back(), 16);
}

TEST(LossScaler, StopsAtItsMinimumWithAnError) {
  LossScaler scaler({.initial_scale_power = 1, .hysteresis = 1, .min_loss_scale = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_THROW(scaler.update(true), Error);
}

TEST(LossScaler, AFixedScaleStays) {
  LossScaler scaler({.loss_scale = 128});
  EXPECT_EQ(scales(scaler, "!!!...").back(), 128);
}

TEST(LossScaler, GoesOnFromItsState) {
  const LossScaleConfig config{.initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 2};
  LossScaler whole(config), first(config), second(config);
  const std::string steps = "!..!!....!..";
  scales(whole, steps);
  scales(first, steps.substr(0, 5));
  second.load_state(first.state());
  scales(second, steps.substr(5));
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_THROW(second.load_state({.scale = 0}), InvalidArgument);
  EXPECT_THROW(second.load_state({.scale = NAN}), InvalidArgument);
  EXPECT_THROW(second.load_state({.steps = 3, .last_overflow = 3}), InvalidArgument);
  EXPECT_THROW(second.load_state({.hysteresis = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::zero::loss_scaler_test
