#include "lockstep/core/memory_settings.h"

#include <gtest/gtest.h>

#include <optional>

namespace lockstep {
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

}  // namespace
}  // namespace lockstep
