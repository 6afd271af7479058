#include "lockstep/core/memory_settings.h"

#include <gtest/gtest.h>

#include <optional>

namespace lockstep::inline v0 {
namespace {

TEST(MemorySettings, LeaveOutWhatTheUserHasSet) {
  const auto none = [](std::string_view) { return std::optional<std::string>(); };
  const auto all = memory_variables(none);
  EXPECT_EQ(all.at("MALLOC_TRIM_THRESHOLD_"), "1073741824");
  EXPECT_EQ(all.at("MALLOC_MMAP_THRESHOLD_"), "33554432");
  EXPECT_EQ(all.at("THP_MEM_ALLOC_ENABLE"), "1");
  const auto some = memory_variables([](std::string_view name) {
    return name == "MALLOC_TRIM_THRESHOLD_" ? std::optional<std::string>("1") : std::nullopt;
  });
  EXPECT_EQ(some.size(), 2U);
  EXPECT_FALSE(some.contains("MALLOC_TRIM_THRESHOLD_"));
}

TEST(MemorySettings, WhatIsFreedGoesBackWhereThereIsLittle) {
  const auto none = [](std::string_view) { return std::optional<std::string>(); };
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(memory_variables(none, 3 * kGiB).at("MALLOC_MMAP_THRESHOLD_"), "4194304");
  EXPECT_EQ(memory_variables(none, 3 * kGiB).at("MALLOC_TRIM_THRESHOLD_"), "67108864");
  EXPECT_EQ(memory_variables(none, 4 * kGiB), memory_variables(none));
}

}  // namespace
}  // namespace lockstep::inline v0
