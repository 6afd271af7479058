#include "lockstep/hooks/name_pattern.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0 {
namespace {

TEST(NamePattern, AStarIsOnePart) {
  EXPECT_TRUE(is_named("layers.3", "layers.*"));
  EXPECT_TRUE(is_named("a.3.up", "a.*.up"));
  EXPECT_TRUE(is_named("scale", "*"));
  EXPECT_FALSE(is_named("layers.3.up", "layers.*"));
  EXPECT_FALSE(is_named("layers", "layers.*"));
  EXPECT_FALSE(is_named("layers.3", "layer.*"));
  EXPECT_FALSE(is_named("layers.3", "lay*.3"));  // within a part it is a literal character
  EXPECT_FALSE(is_named("layers", ""));
}

TEST(NamePattern, WhatIsBelowAModuleIsMeantWithIt) {
  EXPECT_TRUE(is_named_or_below("layers.3", "layers.*"));
  EXPECT_TRUE(is_named_or_below("layers.3.up.weight", "layers.*"));
  EXPECT_TRUE(is_named_or_below("layers.3.up.weight", "layers"));
  EXPECT_TRUE(is_named_or_below("layers.3.up.weight", "layers.*.up"));
  EXPECT_FALSE(is_named_or_below("layers.3.up.weight", "layers.*.down"));
  EXPECT_FALSE(is_named_or_below("embedding.weight", "embed"));
  EXPECT_FALSE(is_named_or_below("layers", "layers.*"));
}

}  // namespace
}  // namespace lockstep::inline v0
