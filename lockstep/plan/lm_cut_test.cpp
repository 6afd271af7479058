#include "lockstep/plan/lm_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using ::testing::ElementsAre;

TEST(LmCut, BalancesLayersAndTheHead) {
  // Embeddings and two layers, two layers, the norm and the head, which is as dear as two.
  EXPECT_THAT(layers_of_cut(lm_cut(4, 1, 2, 3), 4), ElementsAre(2, 2, 0));
  EXPECT_THAT(layers_of_cut(lm_cut(8, 1, 0.1, 4), 8), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(layers_of_cut(lm_cut(4, 1, 1, 1), 4), ElementsAre(4));
  EXPECT_THROW(lm_cut(1, 1, 1, 5), InvalidArgument);
}

TEST(LmCut, LayersAreCountedInAnyCut) {
  EXPECT_THAT(layers_of_cut({1, 4, 2}, 4), ElementsAre(0, 4, 0));
  EXPECT_THAT(layers_of_cut({3, 4}, 4), ElementsAre(2, 2));
}

}  // namespace
}  // namespace lockstep::inline v0
