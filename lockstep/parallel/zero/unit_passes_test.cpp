#include "lockstep/parallel/zero/internal/unit_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::inline v0::zero_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kUnits = 4;

// The places that a backward visits, with the units that end before each.
std::vector<std::string> places_of(internal::UnitPasses& passes,
                                   const std::vector<size_t>& reached) {
  std::vector<std::string> places;
  const auto go_by = [&](size_t unit) {
    std::string place;
    for (size_t i = 0; i < kUnits; ++i)
      if (passes.over(i)) place += std::to_string(i);
    passes.pass(unit);
    places.push_back(place + "|" + std::to_string(unit));
  };
  for (const size_t unit : reached)
    for (const size_t next : passes.until(unit)) go_by(next);
  for (const size_t next : passes.rest()) go_by(next);
  return places;
}

// The units that a rank's backward reaches do not change the order in which ranks exchange.
TEST(UnitPasses, AreTheSameWhateverABackwardReaches) {
  const std::vector<std::vector<size_t>> forwards = {{0, 1, 2, 3}, {2, 0, 3}, {0, 1, 2, 1, 3, 3}};
  for (const std::vector<size_t>& forward : forwards) {
    std::vector<std::string> first;
    for (unsigned left_out = 0; left_out < (1U << forward.size()); ++left_out) {
      internal::UnitPasses passes(kUnits);
      passes.begin_backward();
      for (const size_t unit : forward) passes.went(unit);
      std::vector<size_t> reached;
      for (size_t i = forward.size(); i-- > 0;)
        if ((left_out >> i & 1U) == 0) reached.push_back(forward[i]);
      // A unit that occurs twice is left out as a whole, because it would be ambiguous which pass a
      // backward belongs to.
      if (forward.size() > kUnits && left_out != 0) continue;
      const std::vector<std::string> places = places_of(passes, reached);
      if (first.empty()) first = places;
      EXPECT_EQ(places, first) << forward.size() << " " << left_out;
      for (const size_t unit : forward) EXPECT_TRUE(passes.over(unit));
    }
  }
}

// Two forwards, then their backwards; the rest of the first waits for its own backward.
TEST(UnitPasses, AForwardWaitsForItsBackward) {
  internal::UnitPasses passes(2);
  for (const size_t unit : {0, 1, 0, 1}) passes.went(unit);
  EXPECT_THAT(places_of(passes, {1}), ElementsAre("|1", "|0"));
  EXPECT_FALSE(passes.over(0));
  EXPECT_THAT(places_of(passes, {0}), ElementsAre("|1", "1|0"));
  EXPECT_TRUE(passes.over(0));
  passes.begin_backward();
  EXPECT_FALSE(passes.over(0));
  // For a forward that was not recorded, such as one under whole_parameters().
  EXPECT_THAT(passes.until(1), ElementsAre(1));
  passes.went(0);
  passes.clear();
  EXPECT_THAT(passes.rest(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
