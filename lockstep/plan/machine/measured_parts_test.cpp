#include "lockstep/plan/machine/measured_parts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::plan {
namespace {

TEST(MeasuredParts, AShapeThatWasMeasuredHasItsFactors) {
  const std::vector<MeasuredPart> measured{{StepPart::kLayer, {128, 512, 256, 128}, 1.5, 1.25},
                                           {StepPart::kLayer, {128, 512, 1024, 128}, 1.25, 1.125},
                                           {StepPart::kUpdate, {1, 1e6, 1, 1}, 3, 1}};
  const PartFactors same = factors_of(measured, StepPart::kLayer, {128, 512, 1024, 128});
  EXPECT_EQ(same.forward, 1.25);
  EXPECT_EQ(same.backward, 1.125);
  EXPECT_NEAR(factors_of(measured, StepPart::kUpdate, {1, 2e6, 1, 1}).forward, 3, 1e-12);
  EXPECT_EQ(factors_of(measured, StepPart::kEnds, {}).forward, 1) << "none was measured";
  const PartFactors between = factors_of(measured, StepPart::kLayer, {128, 512, 512, 128});
  EXPECT_NEAR(between.forward, std::sqrt(1.5 * 1.25), 1e-9) << "as far from both";
  const PartFactors nearer = factors_of(measured, StepPart::kLayer, {128, 512, 300, 128});
  EXPECT_GT(nearer.forward, 1.49);
  EXPECT_LT(nearer.forward, 1.5);
}

TEST(MeasuredParts, HaveNames) {
  for (const StepPart part : {StepPart::kLayer, StepPart::kEnds, StepPart::kUpdate})
    EXPECT_EQ(parse_step_part(name_of(part)), part);
  EXPECT_THROW(parse_step_part("head"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::plan
