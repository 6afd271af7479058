#include "lockstep/data/cifar10.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <cstdlib>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/internal/test_gzip.h"

namespace lockstep::inline v0::data {
namespace cifar10_test {

// Record i of a file: its label, then bytes that identify it.
std::string records(const std::vector<int>& labels, int salt = 0) {
  std::string bytes;
  for (size_t i = 0; i < labels.size(); ++i) {
    bytes += static_cast<char>(labels[i]);
    for (size_t p = 0; p < 3072; ++p)
      bytes +=
          static_cast<char>((p / 1024 * 50 + p % 7 + i * 11 + static_cast<size_t>(salt)) % 256);
  }
  return bytes;
}

std::vector<int64_t> labels_of(const ImageDataset& set) {
  const int64_t* first = set.labels().const_data_ptr<int64_t>();
  return {first, first + set.size()};
}

// cifar10() and validate_cifar10() must refuse it with the same message, in one line.
void expect_refusal(const std::filesystem::path& path, const std::string& part,
                    const Cifar10Options& options = {}) {
  const std::string line = message_of<DataError>([&] { cifar10(path, options); });
  EXPECT_EQ(message_of<DataError>([&] { validate_cifar10(path, options); }), line);
  EXPECT_NE(line.find(part), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

void write_published(const TestDirectory& dir, const std::string& below = "") {
  if (!below.empty()) std::filesystem::create_directories(dir / below);
  for (int i = 1; i <= 5; ++i)
    dir.write(below + "data_batch_" + std::to_string(i) + ".bin", records({i, 0}, i));
  dir.write(below + "test_batch.bin", records({9, 8, 7}));
}

TEST(Cifar10, ReadsTheFilesAsPublished) {
  const TestDirectory dir;
  write_published(dir, "cifar-10-batches-bin/");
  dir.write("cifar-10-batches-bin/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
  for (const auto& path : {dir.path(), dir / "cifar-10-batches-bin"}) {
    const Cifar10 sets = cifar10(path);
    EXPECT_EQ(labels_of(sets.train), (std::vector<int64_t>{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
    EXPECT_EQ(labels_of(sets.test), (std::vector<int64_t>{9, 8, 7}));
    EXPECT_EQ(sets.classes[9], "j");
    EXPECT_EQ(sets.train.images().sizes(), (torch::IntArrayRef{10, 3, 32, 32}));
    // Record 3 is the second of batch 2; channel 1, row 2, column 5.
    EXPECT_EQ(sets.train.images()[3][1][2][5].item<int>(), 50 + (1024 + 69) % 7 + 11 + 2);
    EXPECT_EQ(validate_cifar10(path).train, 10);
    EXPECT_EQ(validate_cifar10(path).test, 3);
  }
  const auto input = cifar10(dir.path()).test.batch(std::vector<int64_t>{0}).input;
  const float red = static_cast<float>(cifar10(dir.path()).test.images()[0][0][0][0].item<int>());
  EXPECT_FLOAT_EQ(input[0][0][0][0].item<float>(), (red / 255 - 0.4914F) / 0.2470F);
}

TEST(Cifar10, ReadsGzipAndPrefersPlain) {
  const TestDirectory dir;
  const std::string two = records({3, 4}), other = records({5});
  dir.write("train_b.bin.gz", gzip(two.substr(0, 4000)) + gzip(two.substr(4000)));
  dir.write("train_a.bin", other);
  dir.write("train_a.bin.gz", "not looked at");
  dir.write("test_x.bin.gz", gzip(other));
  dir.write("notes.txt", "");
  const Cifar10 sets = cifar10(dir.path());
  EXPECT_EQ(labels_of(sets.train), (std::vector<int64_t>{5, 3, 4}));
  EXPECT_EQ(labels_of(sets.test), (std::vector<int64_t>{5}));
  EXPECT_EQ(sets.classes, cifar10_classes());
  EXPECT_EQ(validate_cifar10(dir.path()).train, 3);
}

TEST(Cifar10, SplitsASingleFile) {
  const TestDirectory dir;
  dir.write("all.bin", records({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0}));
  const Cifar10 sets = cifar10(dir / "all.bin");
  EXPECT_EQ(sets.train.size(), 9);
  EXPECT_EQ(labels_of(sets.test), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(validate_cifar10(dir / "all.bin").test, 2);
  EXPECT_EQ(sets.test.batch(std::vector<int64_t>{1}).target.item<int64_t>(), 0);
  EXPECT_EQ(cifar10(dir / "all.bin", {.load_train = false}).test.size(), 11);
  EXPECT_EQ(cifar10(dir / "all.bin", {.load_test = false}).train.size(), 11);
  dir.write("one.bin", records({1}));
  expect_refusal(dir / "one.bin", "one.bin: holds one image");
}

TEST(Cifar10, LoadsOnlyWhatIsAskedFor) {
  const TestDirectory dir;
  dir.write("test_batch.bin", records({1, 2}));
  EXPECT_EQ(cifar10(dir.path(), {.load_train = false}).test.size(), 2);
  EXPECT_EQ(cifar10(dir.path(), {.load_train = false}).train.size(), 0);
  expect_refusal(dir.path(), "data_batch_1.bin: no such file, plain or .gz");
}

TEST(Cifar10, RefusesWhatIsNotCifar10) {
  const TestDirectory dir;
  expect_refusal(dir / "none", "none: no such file or directory");
  expect_refusal(dir.path(), "holds no train*.bin, plain or .gz");
  write_published(dir);
  std::filesystem::remove(dir / "data_batch_4.bin");
  expect_refusal(dir.path(), "data_batch_4.bin: no such file, plain or .gz");

  write_published(dir);
  const std::string two = records({1, 2});
  dir.write("data_batch_2.bin", two.substr(0, 5000));
  expect_refusal(dir.path(),
                 "data_batch_2.bin: truncated: ends after byte 1927 of the 3073 of "
                 "record 1; download or copy the file again");
  dir.write("data_batch_2.bin", two + "\x01");
  expect_refusal(dir.path(), "truncated: ends after byte 1 of the 3073 of record 2");
  dir.write("data_batch_2.bin", records({1, 10}));
  expect_refusal(dir.path(), "data_batch_2.bin: label 10 of record 1 is outside 0..9");
  dir.write("data_batch_2.bin", "");
  expect_refusal(dir.path(), "data_batch_2.bin: holds no images");
  const std::string packed = gzip(two);
  dir.write("data_batch_2.bin", packed.substr(0, packed.size() - 9));
  expect_refusal(dir.path(), "data_batch_2.bin: truncated: the gzip data end at byte");
  dir.write("data_batch_2.bin", packed + "garbage");
  expect_refusal(dir.path(), "corrupt gzip data");
  std::filesystem::remove(dir / "data_batch_2.bin");
  std::filesystem::create_directory(dir / "data_batch_2.bin");
  expect_refusal(dir.path(), "not a regular file");
  std::filesystem::remove(dir / "data_batch_2.bin");
  write_published(dir);
  dir.write("batches.meta.txt", "cat\ndog\n");
  expect_refusal(dir.path(), "batches.meta.txt: names 2 classes, expected 10");
  std::filesystem::remove(dir / "batches.meta.txt");
  ASSERT_EQ(::mkfifo((dir / "batches.meta.txt").c_str(), 0600), 0);
  expect_refusal(dir.path(), "batches.meta.txt: not a regular file");
}

// Uses the real data, if they are available.
TEST(Cifar10, LoadsTheSubset) {
  const char* root = std::getenv("LOCKSTEP_DATA");
  const std::filesystem::path path =
      std::filesystem::path(root ? root : LOCKSTEP_SOURCE_DIR "/../shared/data") / "cifar10-subset";
  if (!std::filesystem::is_directory(path))
    GTEST_SKIP() << "no cifar10-subset; set LOCKSTEP_DATA to the directory that has it";
  const Cifar10 sets = cifar10(path);
  EXPECT_EQ(sets.train.size(), 10'000);
  EXPECT_EQ(sets.test.size(), 2'000);
  EXPECT_EQ(sets.classes, cifar10_classes());
  const auto pixels = sets.train.images().to(torch::kDouble).div_(255);
  const double mean[] = {0.4914, 0.4820, 0.4458}, stddev[] = {0.2455, 0.2425, 0.2602};
  for (int64_t c = 0; c < 3; ++c) {
    const auto channel = pixels.select(1, c);
    EXPECT_NEAR(channel.mean().item<double>(), mean[c], 1e-4);
    EXPECT_NEAR(channel.std().item<double>(), stddev[c], 1e-4);
  }
  const auto counts = torch::bincount(sets.train.labels().narrow(0, 0, 3000));
  const auto expected = torch::tensor({299, 287, 322, 285, 311, 279, 312, 297, 308, 300});
  EXPECT_TRUE(torch::equal(counts, expected.to(torch::kLong)));
}

}  // namespace cifar10_test
}  // namespace lockstep::inline v0::data
