#include "lockstep/data/idx.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <numeric>
#include <random>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/internal/test_gzip.h"

namespace lockstep::inline v0::data {
namespace idx_test {

std::string header(std::initializer_list<uint32_t> dims, char type = 8) {
  std::string bytes = {0, 0, type, static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift);
  }
  return bytes;
}

IdxArray parse(const std::string& bytes) {
  return parse_idx(std::as_bytes(std::span(bytes)), "file.idx");
}

// The file as every reader sees it: parse_idx, read_idx and check_idx must all refuse it with the
// same message.
std::string refusal(const std::string& bytes) {
  const TestDirectory dir;
  dir.write("file.idx", bytes);
  const std::string parsed = message_of<DataError>([&] { parse(bytes); });
  const std::string prefix = dir.path().string() + "/";
  EXPECT_EQ(message_of<DataError>([&] { read_idx(dir / "file.idx"); }), prefix + parsed);
  EXPECT_EQ(message_of<DataError>([&] { check_idx(dir / "file.idx"); }), prefix + parsed);
  EXPECT_EQ(parsed.find("file.idx: "), 0U) << parsed;
  EXPECT_EQ(parsed.find('\n'), std::string::npos) << parsed;
  return parsed;
}

void expect_refusal(const std::string& bytes, const std::string& part) {
  const std::string line = refusal(bytes);
  EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(Idx, ReadsPlainAndGzip) {
  const std::string plain = header({2, 1, 3}) + "abcdef";
  for (const std::string& bytes :
       {plain, gzip(plain), gzip(plain.substr(0, 9)) + gzip(plain.substr(9))}) {
    const IdxArray array = parse(bytes);
    EXPECT_EQ(array.dims, (std::vector<int64_t>{2, 1, 3}));
    EXPECT_EQ(std::string(array.values.begin(), array.values.end()), "abcdef");
  }
  EXPECT_EQ(parse(header({0, 28, 28})).dims, (std::vector<int64_t>{0, 28, 28}));
  EXPECT_EQ(parse(header({1, 1, 1, 1}) + "x").values.size(), 1U);
}

TEST(Idx, WritesWhatItReads) {
  const TestDirectory dir;
  std::vector<uint8_t> values(3 * 256);
  std::iota(values.begin(), values.end(), uint8_t{0});
  const std::vector<int64_t> dims = {3, 256};
  write_idx(dir / "a", dims, values);
  EXPECT_EQ(dir.read("a").substr(0, 12), header({3, 256}));
  EXPECT_EQ(read_idx(dir / "a").values, values);
  EXPECT_EQ(check_idx(dir / "a"), dims);
  dir.write("a.gz", gzip(dir.read("a")));
  EXPECT_EQ(read_idx(dir / "a.gz").values, values);
  EXPECT_EQ(check_idx(dir / "a.gz"), dims);

  EXPECT_THROW(write_idx(dir / "b", std::vector<int64_t>{2}, values), InvalidArgument);
  EXPECT_THROW(write_idx(dir / "b", std::vector<int64_t>{}, values), InvalidArgument);
  EXPECT_THROW(write_idx(dir / "b", std::vector<int64_t>{-3, -256}, values), InvalidArgument);
  EXPECT_THROW(write_idx(dir / "b", std::vector<int64_t>{1, 1, 1, 1, 768}, values),
               InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(dir / "b"));
}

TEST(Idx, RefusesOtherFiles) {
  expect_refusal("\x89PNG....", "not an idx file");
  expect_refusal(header({4}, 0x0d) + "0123456789abcdef",
                 "element type 13 at byte 2, expected 8 (uint8)");
  expect_refusal(std::string("\0\0\x08\0", 4), "0 dims at byte 3");
  expect_refusal(std::string("\0\0\x08\x05", 4) + std::string(40, 'x'), "5 dims at byte 3");
}

TEST(Idx, RefusesTruncatedAndTrailing) {
  const std::string plain = header({2, 3}) + "abcdef";
  expect_refusal("", "ends in the header, after byte 0 of 4");
  expect_refusal(plain.substr(0, 7), "ends in the header, after byte 7 of 12");
  expect_refusal(plain.substr(0, 17), "promises 2x3 = 6 bytes after byte 12, the file has 5");
  expect_refusal(plain + "gh", "2 or more bytes after the last value, at byte 18");
  expect_refusal(gzip(plain.substr(0, 17)), "the file has 5");
  expect_refusal(gzip(plain + "g"), "1 or more bytes after the last value, at byte 18");
}

TEST(Idx, RefusesCorruptGzip) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>(i * i % 251);
  const std::string packed = gzip(header({4000}) + text);
  expect_refusal(packed.substr(0, packed.size() / 2), "truncated: the gzip data end at byte");
  expect_refusal(packed.substr(0, packed.size() - 3), "truncated: the gzip data end at byte");
  expect_refusal(packed + "garbage", "corrupt gzip data");
  std::string flipped = packed;
  flipped[packed.size() - 6] ^= 1;  // in the CRC
  expect_refusal(flipped, "corrupt gzip data");
}

TEST(Idx, MissingFilesAndDirectories) {
  const TestDirectory dir;
  EXPECT_NE(message_of<DataError>([&] { read_idx(dir / "none"); }).find("none: cannot be opened"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] { check_idx(dir.path()); }).find("not a regular file"),
            std::string::npos);
}

// Limits this process's growth to `bytes` until destroyed: beyond that, allocation throws
// std::bad_alloc. Sanitizers reserve address space of their own, so nothing is limited under them.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit tight{memory_use().virtual_bytes + bytes, before_.rlim_max};
    if (!kSanitized) ::setrlimit(RLIMIT_AS, &tight);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// A header that announces 4e9 images must not cost memory.
TEST(Idx, HostileHeadersDoNotAllocate) {
  const MemoryLimit limit(size_t{256} << 20);
  const std::string images = header({0xffffffff, 28, 28});
  expect_refusal(images, "promises 4294967295x28x28");
  expect_refusal(images + std::string(784, 'x'), "the file has 784");
  expect_refusal(gzip(images), "the file can hold at most");
  expect_refusal(header({0xffffffff, 0xffffffff, 0xffffffff}), "more than any file holds");
  expect_refusal(header({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
                 "more than any file holds");
  // 1 MB of real gzip data allows an announcement of 1 GB; the values end after 10.
  std::mt19937 random(1);
  std::string noise(1 << 20, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  expect_refusal(gzip(header({1000000000}) + noise), "truncated: the header promises 1000000000");
}

// Whatever the bytes, the parser returns an array that fits its dims or throws DataError.
TEST(Idx, SurvivesMutatedFiles) {
  std::mt19937 random(7);
  const std::string plain = header({3, 4, 5}) + std::string(60, 'v');
  const std::string seeds[] = {plain, gzip(plain)};
  int accepted = 0;
#ifdef __SANITIZE_THREAD__
  constexpr int kRounds = 2000;  // of one thread
#else
  constexpr int kRounds = 20000;
#endif
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = seeds[round % 2];
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    try {
      const IdxArray array = parse(bytes);
      int64_t count = 1;
      for (const int64_t dim : array.dims) count *= dim;
      ASSERT_EQ(static_cast<int64_t>(array.values.size()), count);
      ++accepted;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(accepted, kRounds / 20);  // value bytes may be anything
  EXPECT_LT(accepted, kRounds / 20 * 19);
}

}  // namespace idx_test
}  // namespace lockstep::inline v0::data
