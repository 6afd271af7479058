#include "lockstep/checkpoint/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::checksum_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The values are those that `xxhsum -H3` of xxHash 0.8.1 prints.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum_text(checksum_of("", 0).xxh3), "2d06800538d394c2");
  EXPECT_EQ(checksum_text(checksum_of("abc", 3).xxh3), "78af5f94892f3950");
}

TEST(Checksum, PiecesGiveTheSumOfTheWhole) {
  std::string bytes(100'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 5);
  for (const size_t piece : {1, 7, 256, 4096, 99'999}) {
    Checksum sum;
    for (size_t at = 0; at < bytes.size(); at += piece)
      sum.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    EXPECT_EQ(sum.sum(), checksum_of(bytes.data(), bytes.size())) << piece;
  }
}

// At any alignment within cache lines and pages.
TEST(Checksum, CopiesWhatItSums) {
  std::string bytes(40'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 5);
  for (const size_t from : {0, 1, 64, 77}) {
    for (const size_t to : {0, 8, 63, 4095}) {
      for (const size_t size : {0, 1, 100, 4096, 30'001}) {
        std::string copy(bytes.size(), '.'), plain = copy;
        Checksum sum;
        sum.update("start", 5);
        sum.copy(copy.data() + to, bytes.data() + from, size);
        EXPECT_EQ(copy, std::string(to, '.') + bytes.substr(from, size) +
                            std::string(copy.size() - to - size, '.'));
        const std::string summed = "start" + bytes.substr(from, size);
        EXPECT_EQ(sum.sum(), checksum_of(summed.data(), summed.size()));
        copy_past_caches(plain.data() + to, bytes.data() + from, size);
        EXPECT_EQ(plain, copy);
      }
    }
  }
}

TEST(Checksum, ListIsReadBack) {
  const FileSums sums{{"a.safetensors", {5, 0xfedcba9876543210}}, {"\xE4\xB8\xAD.txt", {0, 1}}};
  EXPECT_EQ(parse_checksums(format_checksums(sums), "c"), sums);
}

TEST(Checksum, BadListsAreOneLine) {
  const std::string good = format_checksums({{"a", {1, 2}}});
  const auto error = [](const std::string& json) {
    return message_of<CheckpointError>([&] { parse_checksums(json, "dir/checksums.json"); });
  };
  for (const std::string& json :
       {std::string(), std::string("[]"), std::string("{}"), good.substr(0, good.size() / 2),
        std::string(R"({"algorithm":"XXH3-64","files":[]})"),
        std::string(R"({"algorithm":"XXH3-64","files":{"a":{"bytes":-1,"xxh3":1}}})"),
        std::string(R"({"algorithm":"MD5","files":{}})"),
        std::string(R"({"algorithm":"XXH3-64","files":{"a":{"bytes":1,"xxh3":"12"}}})"),
        std::string(
            R"({"algorithm":"XXH3-64","files":{"a":{"bytes":1,"xxh3":"000000000000000x"}}})"),
        std::string(
            R"({"algorithm":"XXH3-64","files":{"../a":{"bytes":1,"xxh3":"0000000000000000"}}})")}) {
    EXPECT_THAT(error(json), AllOf(StartsWith("dir/checksums.json: "), Not(HasSubstr("\n"))))
        << json;
  }
  EXPECT_THAT(message_of<CheckpointError>([] { check_sum({3, 1}, {4, 1}, "f"); }),
              HasSubstr("f: has 3 bytes, but 4"));
  EXPECT_THAT(message_of<CheckpointError>([] { check_sum({4, 1}, {4, 2}, "f"); }),
              HasSubstr("its checksum is 0000000000000001"));
}

}  // namespace lockstep::inline v0::checksum_test
