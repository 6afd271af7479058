// The table of ways that do not go together.
#include "lockstep/plan/refused_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::inline v0 {
namespace {

using ::testing::HasSubstr;

TEST(RefusedProducts, APairIsRefusedAndEachOfItAloneIsNot) {
  for (const RefusedProduct& product : refused_products()) {
    EXPECT_FALSE(product.why.empty());
    EXPECT_EQ(refused_among({product.first}), nullptr);
    EXPECT_EQ(refused_among({product.second, "tensor"}), nullptr);
    const RefusedProduct* found = refused_among({product.second, "tensor", product.first});
    ASSERT_NE(found, nullptr);
    EXPECT_THAT(to_string(*found),
                HasSubstr(product.first + " and " + product.second + " do not go together: "));
  }
  EXPECT_EQ(refused_among({}), nullptr);
  EXPECT_EQ(refused_among({"pipe", "tensor", "zero 3", "divided rows"}), nullptr);
}

}  // namespace
}  // namespace lockstep::inline v0
