#include "lockstep/checkpoint/zip_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::zip_directory_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::span<const std::byte> bytes_of(const std::string& archive) {
  return std::as_bytes(std::span(archive));
}
std::string error_of(const std::string& archive) {
  return message_of<CheckpointError>([&] { parse_zip_directory(bytes_of(archive), "a.zip"); });
}

TEST(ZipDirectory, ListsMembersWithTheirPlaces) {
  const std::string archive = stored_zip({{"a", "xyz"}, {"dir/b", ""}});
  EXPECT_TRUE(looks_like_zip(bytes_of(archive)));
  const ZipMembers members = parse_zip_directory(bytes_of(archive), "a.zip");
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(archive.substr(members.at("a").begin, members.at("a").size), "xyz");
  EXPECT_EQ(members.at("dir/b").size, 0u);
  EXPECT_TRUE(members.at("a").stored);
  EXPECT_EQ(parse_zip_directory(bytes_of(stored_zip({})), "a.zip").size(), 0u);
  EXPECT_EQ(parse_zip_directory(bytes_of("??" + stored_zip({})), "a.zip").size(), 0u);
}

TEST(ZipDirectory, CommentMayFollow) {
  std::string archive = stored_zip({{"a", "xyz"}});
  archive[archive.size() - 2] = 5;
  EXPECT_EQ(parse_zip_directory(bytes_of(archive + "hello"), "a.zip").size(), 1u);
  EXPECT_THAT(error_of(archive + "hell"), HasSubstr("list of members is missing"));
}

TEST(ZipDirectory, DamagedIsOneLine) {
  const std::string archive = stored_zip({{"a", "xyz"}, {"b", "pq"}});
  EXPECT_THAT(error_of(""), HasSubstr("too short"));
  for (size_t size = 0; size < archive.size(); ++size)
    EXPECT_THAT(error_of(archive.substr(0, size)), StartsWith("a.zip: ")) << size;
  EXPECT_THAT(error_of(stored_zip({{"a", "1"}, {"a", "2"}})),
              HasSubstr("two members are called 'a'"));
  std::string moved = archive;
  moved[4 + 26 + 0] = 'X';  // the name in the local header
  EXPECT_THAT(error_of(moved), HasSubstr("'a' is not where the list says"));
}

// Whatever a byte is changed to, the archive is read or refused.
TEST(ZipDirectory, AnyFlippedByteIsHandled) {
  const std::string archive = stored_zip({{"a", "xyz"}, {"b", "pq"}});
  for (size_t at = 0; at < archive.size(); ++at) {
    for (int flip = 1; flip < 256; flip += 2) {
      std::string bad = archive;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      try {
        for (const auto& [name, member] : parse_zip_directory(bytes_of(bad), "a.zip"))
          EXPECT_LE(member.begin + member.size, bad.size());
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), AllOf(StartsWith("a.zip: "), Not(HasSubstr("\n"))));
      }
    }
  }
}

}  // namespace lockstep::inline v0::zip_directory_test
