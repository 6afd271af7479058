#include "lockstep/checkpoint/scaler_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::scaler_state_test {

TEST(ScalerState, ComesBackUnderPythonsNames) {
  const amp::GradScalerState state{.scale = 0.1,
                                   .growth_factor = 2,
                                   .backoff_factor = 0.5,
                                   .growth_interval = 2000,
                                   .growth_tracker = 17};
  const std::string json = to_json(state);
  EXPECT_THAT(json, ::testing::HasSubstr("\"_growth_tracker\": 17"));
  EXPECT_EQ(scaler_state_from_json(json, "s"), state);
}

TEST(ScalerState, DamagedIsNamed) {
  for (const char* json : {"", "{}", "[1]", "{\"scale\": \"x\"}"}) {
    EXPECT_THAT(message_of<CheckpointError>([&] { scaler_state_from_json(json, "c/scaler.json"); }),
                ::testing::StartsWith("c/scaler.json: "));
  }
}

}  // namespace lockstep::inline v0::scaler_state_test
