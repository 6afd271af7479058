#include "lockstep/checkpoint/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::safetensors_header_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

SafetensorsHeader parse(std::string_view json, uint64_t bytes) {
  return parse_safetensors_header(json, bytes, "x.st");
}

TEST(SafetensorsHeader, ReadsEntriesAndMetadata) {
  const auto header = parse(R"({"__metadata__":{"a":"b"},
      "w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
      "s":{"shape":[],"data_offsets":[24,26],"dtype":"BF16"},
      "e":{"dtype":"I64","shape":[0,7],"data_offsets":[24,24]}}   )",
                            26);
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "w");
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].name, "e");
  EXPECT_EQ(header.entries[2].dtype, "BF16");
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"a", "b"}}));
  EXPECT_TRUE(parse("{}", 0).entries.empty());
  EXPECT_TRUE(parse(R"({"__metadata__":null})", 0).metadata.empty());
}

TEST(SafetensorsHeader, FormatIsReadBackAndAligned) {
  SafetensorsHeader header;
  header.metadata = {{"k", "\"\n\xE5\xAD\x97"}};
  header.entries = {{"a\"b", "F64", {3}, 0, 24}, {"c", "U8", {}, 24, 25}};
  const std::string text = format_safetensors_header(header);
  EXPECT_EQ((8 + text.size()) % 64, 0u);
  const auto again = parse(text, 25);
  EXPECT_EQ(again.metadata, header.metadata);
  ASSERT_EQ(again.entries.size(), 2u);
  EXPECT_EQ(again.entries[0].name, "a\"b");
  EXPECT_EQ(again.entries[1].end, 25u);
}

struct Bad {
  const char* what;
  std::string json;
  uint64_t bytes;
  const char* says;
};

class BadSafetensorsHeader : public ::testing::TestWithParam<Bad> {};

TEST_P(BadSafetensorsHeader, IsOneClearLine) {
  try {
    parse(GetParam().json, GetParam().bytes);
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("x.st: "), HasSubstr(GetParam().says), Not(HasSubstr("\n"))));
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets,
                   const std::string& name = "w") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + tensor(dtype, shape, offsets) + "}";
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensorsHeader,
    ::testing::Values(
        Bad{"Empty", "", 0, "not JSON"}, Bad{"NotJson", "{\"w\":", 0, "not JSON"},
        Bad{"Trailing", "{} x", 0, "not JSON"}, Bad{"BadUtf8", "{\"\xff\":1}", 0, "not JSON"},
        Bad{"Array", "[]", 0, "an array"}, Bad{"Scalar", "3", 0, "the number 3"},
        Bad{"TensorIsNumber", "{\"w\":1}", 0, "'w' is the number 1"},
        Bad{"TensorIsString", "{\"w\":\"x\\ny\"}", 0, "'x?y'"},
        Bad{"DeepArray", "{\"w\":" + std::string(200000, '['), 0, "tensor 'w'"},
        Bad{"DeepShape", "{\"w\":{\"shape\":" + std::string(200000, '['), 0, "tensor 'w'"},
        Bad{"NegativeDim", one("F32", "[-1]", "[0,4]"), 4, "the number -1"},
        Bad{"FloatDim", one("F32", "[1.0]", "[0,4]"), 4, "the number '1.0'"},
        Bad{"HugeDim", one("F32", "[18446744073709551615]", "[0,4]"), 4, "the dim"},
        Bad{"OverflowShape", one("F32", "[4294967296,4294967296,4294967296]", "[0,0]"), 0,
            "too large"},
        Bad{"OverflowEmptyShape", one("F32", "[0,4611686018427387904,4]", "[0,0]"), 0, "too large"},
        Bad{"WrapToSize", one("U8", "[4611686018427387904,4]", "[0,0]"), 0, "too large"},
        Bad{"SizeMismatch", one("F32", "[2]", "[0,4]"), 4, "need 8"},
        Bad{"OutOfBounds", one("F32", "[2]", "[0,8]"), 4, "of 4"},
        Bad{"Backwards", one("F32", "[2]", "[8,0]"), 8, "8 to 0"},
        Bad{"UnknownDtype", one("F31", "[1]", "[0,4]"), 4, "'F31', which is not supported"},
        Bad{"OneOffset", one("F32", "[1]", "[0]"), 4, "two data_offsets"},
        Bad{"ThreeOffsets", one("F32", "[1]", "[0,4,4]"), 4, "in its 'data_offsets'"},
        Bad{"NoDtype", "{\"w\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "lacks its dtype"},
        Bad{"NoShape", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "lacks its shape"},
        Bad{"NoOffsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "lacks its data_offsets"},
        Bad{"TwiceDtype", "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "'dtype' twice"},
        Bad{"UnknownKey", "{\"w\":{\"foo\":1}}", 4, "unknown key 'foo'"},
        Bad{"Duplicate",
            "{" + tensor("U8", "[1]", "[0,1]") + "," + tensor("U8", "[1]", "[1,2]") + "}", 2,
            "'w' appears twice"},
        Bad{"Overlap",
            "{" + tensor("U8", "[2]", "[0,2]") + "," + tensor("U8", "[2]", "[1,3]", "v") + "}", 3,
            "'v' overlaps"},
        Bad{"Hole",
            "{" + tensor("U8", "[1]", "[0,1]") + "," + tensor("U8", "[1]", "[2,3]", "v") + "}", 3,
            "hole"},
        Bad{"Tail", one("U8", "[1]", "[0,1]"), 3, "1 bytes, but 3"},
        Bad{"MetadataNumber", "{\"__metadata__\":{\"a\":1}}", 0, "metadata 'a' is the number 1"},
        Bad{"MetadataTwice", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0,
            "'a' appears twice"}),
    [](const auto& info) { return info.param.what; });

}  // namespace lockstep::inline v0::safetensors_header_test
