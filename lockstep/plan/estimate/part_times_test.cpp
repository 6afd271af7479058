#include "lockstep/plan/estimate/part_times.h"

#include <gtest/gtest.h>

#include "lockstep/plan/estimate/estimate.h"

namespace lockstep::inline v0::plan {
namespace {

ModelShape small() {
  ModelShape model;
  model.name = "small";
  model.layers = 4;
  model.hidden = 256;
  model.heads = 4;
  model.ffn = 1024;
  model.vocab = 2048;
  return model;
}

Machine host() {
  Machine machine;
  machine.name = "host";
  machine.ranks_per_host = 2;
  machine.float32 = 5e10;
  machine.memory = 8e9;
  machine.memory_bandwidth = 1e10;
  machine.inside = machine.between = {.latency = 1e-5, .bandwidth = 4e9};
  machine.host = true;
  return machine;
}

Layout layout() {
  Layout one{.micro_batch = 4, .global_batch = 4, .sequence = 128};
  one.precision = Precision::kFloat32;
  one.masters = false;
  return one;
}

TEST(PartTimes, SumToTheStepOfARankAlone) {
  const Stack stack;
  const ModelShape model = small();
  const PartTimes parts = part_times(model, layout(), host(), stack);
  EXPECT_GT(parts.layer_backward, parts.layer_forward);
  EXPECT_GT(parts.ends_backward, parts.ends_forward);
  const double sum = 4 * (parts.layer_forward + parts.layer_backward) + parts.ends_forward +
                     parts.ends_backward + parts.update;
  EXPECT_NEAR(estimate(model, layout(), host(), stack).step, sum, 1e-9 * sum);
}

// What was measured becomes what is estimated.
TEST(PartTimes, FollowWhatWasMeasured) {
  Stack stack;
  const ModelShape model = small();
  const PartTimes before = part_times(model, layout(), host(), stack);
  stack.measured = {
      {StepPart::kLayer, layer_part(model, 1, 512, 128), 1.5, 1.25},
      {StepPart::kEnds, ends_part(model, 1, 512), 2, 3},
      {StepPart::kUpdate, update_part(static_cast<double>(parameter_count(model))), 0.5, 1}};
  const PartTimes after = part_times(model, layout(), host(), stack);
  EXPECT_NEAR(after.layer_forward, 1.5 * before.layer_forward, 1e-12);
  EXPECT_NEAR(after.layer_backward, 1.25 * before.layer_backward, 1e-12);
  EXPECT_NEAR(after.ends_forward, 2 * before.ends_forward, 1e-12);
  EXPECT_NEAR(after.ends_backward, 3 * before.ends_backward, 1e-12);
  EXPECT_NEAR(after.update, before.update / 2, 1e-12);
  Layout narrow = layout();
  narrow.precision = Precision::kBFloat16;
  EXPECT_EQ(part_times(model, narrow, host(), stack).layer_forward,
            part_times(model, narrow, host(), Stack{}).layer_forward)
      << "they were measured in float32";
  // A part of the layer that tensor divides is one with fewer inner columns.
  Layout divided = layout();
  divided.tensor = 2;
  const double whole = estimate(model, divided, host(), Stack{}).time.matrices;
  stack.measured = {{StepPart::kLayer, layer_part(model, 2, 512, 128), 2, 2}};
  EXPECT_NEAR(estimate(model, divided, host(), stack).time.matrices, 2 * whole, 1e-12);
}

}  // namespace
}  // namespace lockstep::inline v0::plan
