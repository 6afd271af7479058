#include "lockstep/insitu/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::insitu {
namespace schema_test {

using ::testing::HasSubstr;

Schema some() {
  return Schema({{"u", DType::kFloat32, {3, 5}}, {"step", DType::kInt64, {}}});
}

std::string why_not(std::vector<Field> fields) {
  try {
    Schema schema(std::move(fields));
    return "no error";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Schema, PlacesFieldsAtCacheLines) {
  const Schema schema = some();
  EXPECT_EQ(schema[0].bytes(), 60u);
  EXPECT_EQ(schema[1].bytes(), 8u);
  EXPECT_EQ(schema.offset(1), 64u);
  EXPECT_EQ(schema.sample_bytes(), 128u);
  EXPECT_EQ(schema.index_of("step"), 1u);
  EXPECT_EQ(schema.to_string(), "u float32 [3, 5]; step int64 []");
  EXPECT_THROW(schema.index_of("v"), InvalidArgument);
}

TEST(Schema, NamesWhatIsWrong) {
  EXPECT_THAT(why_not({}), HasSubstr("at least one field"));
  EXPECT_THAT(why_not({{"", DType::kInt8, {1}}}), HasSubstr("without a name"));
  EXPECT_THAT(why_not({{"a", DType::kInt8, {1}}, {"a", DType::kInt8, {1}}}), HasSubstr("'a'"));
  EXPECT_THAT(why_not({{"a", DType::kInt8, {3, 0}}}), HasSubstr("a int8 [3, 0]"));
  EXPECT_THAT(why_not({{"a", DType::kInt8, {-1}}}), HasSubstr("below 1"));
  EXPECT_THAT(why_not({{"a", DType::kFloat64, {int64_t{1} << 62, 16}}}), HasSubstr("2^40"));
  EXPECT_THAT(why_not({{"a", DType::kInt8, std::vector<int64_t>(9, 1)}}), HasSubstr("dims"));
  EXPECT_THAT(why_not({{std::string(64, 'x'), DType::kInt8, {}}}), HasSubstr("longer"));
  EXPECT_THAT(why_not({{"a", static_cast<DType>(0), {}}}), HasSubstr("dtype 0"));
  EXPECT_THAT(why_not({{"a", static_cast<DType>(11), {}}}), HasSubstr("dtype 11"));
}

TEST(Schema, TheDifferenceNamesTheFieldAndBothForms) {
  EXPECT_EQ(difference(some(), some()), "");
  EXPECT_EQ(difference(some(), Schema({{"u", DType::kFloat32, {3, 6}}, some()[1]})),
            "field 0 is u float32 [3, 5] in the ring, and here u float32 [3, 6]");
  EXPECT_EQ(difference(some(), Schema({some()[0]})), "the ring has a further field step int64 []");
  EXPECT_EQ(difference(Schema({some()[0]}), some()), "the ring has no field step int64 []");
}

TEST(Schema, ComesBackFromBytes) {
  const auto bytes = encode(some());
  EXPECT_LE(bytes.size(), kMaxEncodedSchema);
  EXPECT_EQ(decode_schema(bytes.data(), bytes.size()), some());
}

TEST(Schema, BytesThatAreNoneAreRefused) {
  const auto bytes = encode(some());
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_THROW(decode_schema(bytes.data(), cut), DataError) << cut;
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    auto changed = bytes;
    for (int n = 0; n < 3; ++n)
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      const Schema schema = decode_schema(changed.data(), changed.size());
      EXPECT_LE(schema.sample_bytes(), size_t{1} << 40);
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace schema_test
}  // namespace lockstep::inline v0::insitu
