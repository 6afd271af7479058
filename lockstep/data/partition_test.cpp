// Expected values: the class DataPartitioner of the tutorial, CPython 3.11.
#include "lockstep/data/partition.h"
#include "lockstep/core/internal/test_support.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace partition_test {

std::vector<int64_t> plus_one(std::vector<int64_t> values) {
  for (auto& value : values) ++value;
  return values;
}

TEST(DataPartitioner, SplitsOneToTenAsTheTutorialDoes) {
  const DataPartitioner partitioner(10);
  ASSERT_EQ(partitioner.parts(), 3);
  EXPECT_EQ(plus_one(partitioner.use(0)), (std::vector<int64_t>{3, 9, 4, 6, 7, 5, 10}));
  EXPECT_EQ(plus_one(partitioner.use(1)), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(plus_one(partitioner.use(2)), (std::vector<int64_t>{8}));
}

TEST(DataPartitioner, LengthsFollowPythonsDoubles) {
  // int(0.29 * 100) is 28 and int((1 / 49) * 49) is 0 in Python as here: 1.0 / 49 * 49 is just
  // below 1.
  EXPECT_EQ(DataPartitioner(100, {0.29}).use(0).size(), 28U);
  EXPECT_THROW(DataPartitioner(49, std::vector<double>(49, 1.0 / 49)), InvalidArgument);
}

TEST(DataPartitioner, EqualPartsAreDisjointAndDropTheRemainder) {
  const DataPartitioner partitioner = DataPartitioner::equal(103, 4);
  std::set<int64_t> seen;
  for (int64_t part = 0; part < 4; ++part) {
    EXPECT_EQ(partitioner.use(part).size(), 25U);
    seen.insert(partitioner.use(part).begin(), partitioner.use(part).end());
  }
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 103);
}

TEST(DataPartitioner, TheSeedChoosesTheOrder) {
  EXPECT_EQ(DataPartitioner(50, {1.0}, 7).use(0), DataPartitioner(50, {1.0}, 7).use(0));
  EXPECT_NE(DataPartitioner(50, {1.0}, 7).use(0), DataPartitioner(50, {1.0}, 8).use(0));
}

TEST(DataPartitioner, RefusesWhatCannotBeSplit) {
  EXPECT_THROW(DataPartitioner(0), InvalidArgument);
  EXPECT_THROW(DataPartitioner(-1), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {0.5, 0.6}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {-0.5}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {std::numeric_limits<double>::quiet_NaN()}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10).use(3), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10).use(-1), InvalidArgument);
  EXPECT_THROW(DataPartitioner::equal(10, 0), InvalidArgument);
  const auto line = message_of<InvalidArgument>([] { DataPartitioner::equal(3, 4); });
  EXPECT_NE(line.find("more parts (ranks) than samples"), std::string::npos) << line;
  EXPECT_NE(message_of<InvalidArgument>([] { DataPartitioner(5); }).find("part 2"),
            std::string::npos);
}

}  // namespace partition_test
}  // namespace lockstep::inline v0::data
