#include "lockstep/checkpoint/pt_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pt_contents_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

PtContents parse(const std::string& bytes) {
  return parse_pt(std::as_bytes(std::span(bytes)), "f.pt");
}
std::string error_of(const std::string& bytes) {
  return message_of<CheckpointError>([&] { parse(bytes); });
}
std::string error_of(const PickledTensor& tensor) {
  return error_of(pt_archive(pickled_dict(pickled(tensor))));
}

TEST(PtContents, TensorLiesInItsStorage) {
  const std::string file = pt_archive(pickled_dict(pickled(PickledTensor{})));
  const PtContents contents = parse(file);
  ASSERT_EQ(contents.tensors.size(), 1u);
  const PtTensor& tensor = contents.tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.dtype, "F32");
  EXPECT_EQ(file.substr(tensor.storage_begin, 24), std::string(24, '\0'));
  EXPECT_EQ(tensor.storage_size, 6u);
  EXPECT_THAT(tensor.sizes, ElementsAre(2, 3));
  EXPECT_THAT(tensor.strides, ElementsAre(3, 1));
}

TEST(PtContents, EveryElementMustLieInTheStorage) {
  EXPECT_EQ(error_of(PickledTensor{.sizes = {6}, .strides = {1}}), "no exception");
  EXPECT_EQ(error_of(PickledTensor{.offset = 1, .sizes = {2, 2}, .strides = {3, 1}}),
            "no exception");
  EXPECT_EQ(error_of(PickledTensor{.sizes = {0, 9}, .strides = {9, 1}}), "no exception");
  const auto beyond = HasSubstr("tensor 'w' reaches beyond its storage of 6 elements");
  EXPECT_THAT(error_of(PickledTensor{.sizes = {7}, .strides = {1}}), beyond);
  EXPECT_THAT(error_of(PickledTensor{.offset = 6, .sizes = {}, .strides = {}}), beyond);
  EXPECT_THAT(error_of(PickledTensor{.sizes = {2}, .strides = {int64_t{1} << 62}}), beyond);
  const auto exist = HasSubstr("too large to exist");
  EXPECT_THAT(error_of(PickledTensor{.sizes = {5, 2}, .strides = {int64_t{1} << 62, 1}}), exist);
  EXPECT_THAT(error_of(PickledTensor{.sizes = {INT64_MAX, 8}, .strides = {0, 0}}), exist);
  EXPECT_THAT(error_of(PickledTensor{.sizes = {0, INT64_MAX, 8}, .strides = {0, 0, 0}}), exist);
  const auto number = HasSubstr("is no whole number");
  EXPECT_THAT(error_of(PickledTensor{.sizes = {-1}, .strides = {1}}), number);
  EXPECT_THAT(error_of(PickledTensor{.sizes = {2}, .strides = {-1}}), number);
  EXPECT_THAT(error_of(PickledTensor{.offset = -1}), number);
  EXPECT_THAT(error_of(PickledTensor{.sizes = {2}, .strides = {1, 1}}), HasSubstr("1 sizes and 2"));
}

TEST(PtContents, StorageIsTheMembersBytes) {
  EXPECT_THAT(error_of(PickledTensor{.storage_size = 7}),
              HasSubstr("24 bytes, but says 7 elements"));
  EXPECT_THAT(error_of(PickledTensor{.storage_class = "torch\nDoubleStorage\n"}),
              HasSubstr("24 bytes, but says 6 elements"));
  EXPECT_THAT(error_of(PickledTensor{.key = "1"}), HasSubstr("lacks its member 'data/1'"));
  EXPECT_THAT(error_of(PickledTensor{.storage_class = "torch\nQInt8Storage\n"}),
              HasSubstr("'torch.QInt8Storage'"));
  EXPECT_THAT(error_of(PickledTensor{.storage_class = "torch\nfloat32\n"}), HasSubstr("no dtype"));
}

// A few bytes that describe terabytes.
TEST(PtContents, ExpandedTensorsStayWithinReason) {
  EXPECT_EQ(error_of(PickledTensor{.sizes = {1000, 1000}, .strides = {0, 0}}), "no exception");
  EXPECT_THAT(error_of(PickledTensor{.sizes = {1'000'000, 1'000'000}, .strides = {0, 0}}),
              HasSubstr("many times larger than the file"));
}

TEST(PtContents, DamagedBytesAreFound) {
  std::string file = pt_archive(pickled_dict(pickled(PickledTensor{})));
  const uint64_t at = parse(file).tensors[0].storage_begin;
  file[at + 5] ^= 1;
  EXPECT_THAT(error_of(file), HasSubstr("'data/0' has another CRC-32"));
  file[at + 5] ^= 1;
  file[file.find("storage")] = 'S';
  EXPECT_THAT(error_of(file), HasSubstr("'data.pkl' has another CRC-32"));
}

TEST(PtContents, WhatIsNoStateDictIsSaid) {
  EXPECT_THAT(error_of("not at all"), HasSubstr("it is not a zip archive"));
  EXPECT_THAT(error_of(stored_zip({{"a/b.txt", ""}})), HasSubstr("without data.pkl"));
  EXPECT_THAT(error_of(stored_zip({{"a/data.pkl", ""}, {"a/constants.pkl", ""}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(error_of(stored_zip({{"a/data.pkl", ""}, {"a/byteorder", "big"}})),
              HasSubstr("big-endian"));
  EXPECT_THAT(error_of(pt_archive("\x80\x02N.")), HasSubstr("no dict of tensors; "));
  EXPECT_THAT(error_of(pt_archive(pickled_dict("N"))), HasSubstr("only the keys 'w'"));
}

// A dict of one entry, as a value for another one.
std::string inner_dict(const std::string& value, const std::string& key = "w") {
  return "}" + pickled(key) + value + "s";
}

TEST(PtContents, StateDictUnderAnyKeyThatIsTheOnlyOne) {
  const std::string state = inner_dict(pickled(PickledTensor{}));
  for (const char* key : {"params", "model_state", "ema", "generator"}) {
    const PtContents contents = parse(pt_archive("\x80\x02}" + pickled(key) + state + "s" +
                                                 pickled("epoch") + pickled(3) + "s."));
    EXPECT_EQ(contents.found_in, key);
    ASSERT_EQ(contents.tensors.size(), 1u);
    EXPECT_EQ(contents.tensors[0].name, "w");
    EXPECT_EQ(contents.metadata.at("epoch"), "3");
  }
  EXPECT_EQ(parse(pt_archive(pickled_dict(inner_dict(state, "net_g"), "saved"))).found_in,
            "saved.net_g");
  // A generator's state beside it is not a state dict, and a module's data other than its tensors
  // is none either.
  const std::string tensor = pickled(PickledTensor{});
  const std::string two = "}" + pickled("w") + tensor + "s" + pickled("v") + tensor + "s";
  EXPECT_EQ(parse(pt_archive("\x80\x02}" + pickled("params") + two + "s" + pickled("rng") + tensor +
                             "s."))
                .found_in,
            "params");
  const PtContents extra = parse(pt_archive("\x80\x02}" + pickled("a._extra_state") + state + "s" +
                                            pickled("a.w") + tensor + "s."));
  EXPECT_EQ(extra.found_in, "");
  EXPECT_THAT(extra.left_out, ElementsAre("a._extra_state"));
  // A usual name takes precedence; between two unusual ones the choice would be ambiguous.
  const auto both = [&](const char* one, const char* other) {
    return pt_archive("\x80\x02}" + pickled(one) + state + "s" + pickled(other) + state + "s.");
  };
  EXPECT_EQ(parse(both("ema", "model")).found_in, "model");
  EXPECT_THAT(error_of(pt_archive("\x80\x02}" + pickled("ema") + two + "s" + pickled("params") +
                                  two + "s" + pickled("rng") + tensor + "s.")),
              HasSubstr("several dicts of tensors, under 'ema', 'params'"));
  EXPECT_THAT(error_of(both("ema", "params")),
              AllOf(HasSubstr("several dicts of tensors, under 'ema', 'params'"),
                    HasSubstr("torch.load(path)[key]")));
}

// Whatever a byte is changed to: with checksums the file is refused, without them it is read or
// refused.
TEST(PtContents, AnyFlippedByteIsHandled) {
  const std::string pickle = pickled_dict(pickled(PickledTensor{}));
  for (size_t at = 0; at < pickle.size(); ++at) {
    for (int flip = 1; flip < 256; flip += 2) {
      std::string bad = pickle;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      const std::string error = error_of(pt_archive(bad));
      EXPECT_THAT(error, ::testing::AnyOf("no exception", StartsWith("f.pt: ")));
      EXPECT_THAT(error, Not(HasSubstr("\n")));
    }
  }
  const std::string file = pt_archive(pickle);
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_THAT(error_of(file.substr(0, size)), StartsWith("f.pt: ")) << size;
}

}  // namespace lockstep::inline v0::pt_contents_test
