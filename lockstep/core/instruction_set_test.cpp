#include "lockstep/core/instruction_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

EnvLookup with(std::optional<std::string> value) {
  return [value](std::string_view name) {
    return name == "LOCKSTEP_CPU_CAPABILITY" ? value : std::nullopt;
  };
}

TEST(InstructionSet, IsLimitedByTheEnvironment) {
  EXPECT_EQ(instruction_set_limit(with(std::nullopt)), instruction_sets().back());
  for (const InstructionSet set : instruction_sets())
    EXPECT_EQ(instruction_set_limit(with(std::string(name_of(set)))), set) << name_of(set);
#if defined(__x86_64__)
  EXPECT_EQ(instruction_set_limit(with("avx512")), InstructionSet::kAvx512);
  EXPECT_EQ(instruction_set_limit(with("avx2")), InstructionSet::kAvx2);
  EXPECT_THROW(instruction_set_limit(with("neon")), InvalidArgument);
#elif defined(__aarch64__)
  EXPECT_EQ(instruction_set_limit(with("neon")), InstructionSet::kNeon);
  EXPECT_THROW(instruction_set_limit(with("avx2")), InvalidArgument);
#endif
  for (const char* bad : {"AVX2", "sse4", "avx512f"}) {
    try {
      instruction_set_limit(with(bad));
      FAIL() << bad;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("LOCKSTEP_CPU_CAPABILITY is '" +
                                                     std::string(bad) + "'; it is one of default"));
      EXPECT_THAT(error.what(), ::testing::ContainsRegex("on host .+, whose processor is .+"));
    }
  }
}

TEST(InstructionSet, WhatIsUsedIsWithinTheLimit) {
  EXPECT_EQ(instruction_set_used(with("default")), InstructionSet::kDefault);
  for (const InstructionSet set : instruction_sets())
    EXPECT_LE(instruction_set_used(with(std::string(name_of(set)))), set);
#if defined(__aarch64__)
  EXPECT_EQ(instruction_set_used(with(std::nullopt)), InstructionSet::kNeon);
#endif
}

}  // namespace
}  // namespace lockstep::inline v0
