#include "lockstep/data/shapes.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/cifar10.h"

namespace lockstep::inline v0::data {
namespace shapes_test {

TEST(Shapes, TheSameBytesEverywhere) {
  const auto records = render_shapes(100, 1234, ShapesSplit::kTrain);
  ASSERT_EQ(records.size(), 100U * 3073U);
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const uint8_t byte : records) hash = (hash ^ byte) * 1099511628211U;
  EXPECT_EQ(hash, 1258005785691548012U);
  // A sample does not depend on the number requested.
  const auto fewer = render_shapes(3, 1234, ShapesSplit::kTrain);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), records.begin()));
  EXPECT_NE(render_shapes(3, 1234, ShapesSplit::kTest), fewer);
  EXPECT_NE(render_shapes(3, 1235, ShapesSplit::kTrain), fewer);
  std::set<int> labels;
  for (size_t i = 0; i < 100; ++i) labels.insert(records[i * 3073]);
  EXPECT_EQ(labels.size(), 10U);
  EXPECT_EQ(*labels.rbegin(), 9);
  EXPECT_THROW(render_shapes(-1, 0, ShapesSplit::kTrain), InvalidArgument);
}

TEST(Shapes, WritesADataSetOnce) {
  const TestDirectory dir;
  const auto set = dir / "a/b";
  EXPECT_TRUE(generate_shapes(set, {.train = 30, .test = 20, .seed = 5}));
  EXPECT_FALSE(generate_shapes(set, {.train = 30, .test = 20, .seed = 5}));
  const Cifar10 sets = cifar10(set);
  EXPECT_EQ(sets.train.size(), 30);
  EXPECT_EQ(sets.test.size(), 20);
  EXPECT_EQ(sets.classes[0], "disc");
  EXPECT_TRUE(generate_shapes(set, {.train = 31, .test = 20, .seed = 5}));
  EXPECT_EQ(cifar10(set).train.size(), 31);
}

TEST(Shapes, LeavesOtherPeoplesFilesAlone) {
  const TestDirectory dir;
  dir.write("data_batch_1.bin", "precious");
  const auto line =
      message_of<InvalidArgument>([&] { generate_shapes(dir.path(), {.train = 3, .test = 2}); });
  EXPECT_NE(line.find("data_batch_1.bin"), std::string::npos) << line;
  EXPECT_EQ(dir.names().size(), 1U);
  EXPECT_THROW(generate_shapes(dir / "new", {.test = 0}), InvalidArgument);
}

}  // namespace shapes_test
}  // namespace lockstep::inline v0::data
