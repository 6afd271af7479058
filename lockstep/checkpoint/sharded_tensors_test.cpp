#include "lockstep/checkpoint/sharded_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::sharded_tensors_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr const char* kIndex = "pytorch_model.bin.index.json";

fs::path seed(const std::string& name) {
  return fs::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/pt_fuzz" / name;
}
// A file of torch.save with one tensor.
std::string pt_of(const std::string& name) {
  return pt_archive(pickled_dict(pickled(PickledTensor{}), name));
}

// Two files of one tensor each, in either form, and an index of both.
void write_two(const TestDirectory& dir, bool safetensors) {
  if (safetensors) {
    write_safetensors(dir / "1.bin", {{"a", at::zeros({2, 3})}});
    write_safetensors(dir / "2.bin", {{"b", at::zeros({2, 3})}});
  } else {
    dir.write("1.bin", pt_of("a"));
    dir.write("2.bin", pt_of("b"));
  }
  dir.write(kIndex, R"({"metadata":{"total_size":48},"weight_map":{"a":"1.bin","b":"2.bin"}})");
}

// The one line that says why the index is not read.
std::string error_of(const TestDirectory& dir, const FileSums& sums = {}) {
  const std::string error = message_of<CheckpointError>([&] { read_sharded(dir / kIndex, sums); });
  EXPECT_THAT(error, Not(HasSubstr("\n")));
  return error;
}
std::string error_of(const TestDirectory& dir, const std::string& weight_map) {
  dir.write(kIndex, R"({"weight_map":)" + weight_map + "}");
  return error_of(dir);
}

TEST(ShardedTensors, FilesOfTorchSaveAreReadAsOne) {
  const TestDirectory dir;
  fs::copy(seed("linear.pt"), dir / "1.bin");
  fs::copy(seed("checkpoint.pt"), dir / "2.bin");
  dir.write(kIndex, R"({"metadata":{"total_size":0},
      "weight_map":{"bias":"1.bin","tied":"2.bin","weight":"1.bin"}})");
  const TensorFile file = read_sharded(dir / kIndex);
  EXPECT_EQ(file.kind, TensorFileKind::kShardedPt);
  EXPECT_EQ(file.path, dir / kIndex);
  EXPECT_EQ(file.contents.find("weight")->sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_TRUE(at::equal(*file.contents.find("tied"), at::arange(24, at::kFloat).view({4, 6})));
  // The metadata beside the tensors, of all files.
  EXPECT_EQ(file.contents.metadata.at("epoch"), "3");
  EXPECT_EQ(file.found_in, "model");
  EXPECT_THAT(file.left_out, ::testing::Contains("optimizer"));
}

TEST(ShardedTensors, FormIsToldByTheBytes) {
  const TestDirectory dir;
  write_two(dir, /*safetensors=*/true);
  EXPECT_EQ(read_sharded(dir / kIndex).kind, TensorFileKind::kShardedSafetensors);
  dir.write("2.bin", pt_of("b"));
  const TensorFile mixed = read_sharded(dir / kIndex);
  EXPECT_EQ(mixed.kind, TensorFileKind::kShardedPt);
  EXPECT_EQ(mixed.contents.tensors.size(), 2u);
}

TEST(ShardedTensors, MissingAndTwofoldAreNamed) {
  for (const bool safetensors : {false, true}) {
    const TestDirectory dir;
    write_two(dir, safetensors);
    EXPECT_EQ(read_sharded(dir / kIndex).contents.tensors.size(), 2u);
    EXPECT_THAT(error_of(dir, R"({"a":"1.bin","lost\n":"2.bin"})"),
                StartsWith((dir / "2.bin").string() + ": lacks the tensor 'lost?' that"));
    EXPECT_THAT(error_of(dir, R"({"a":"1.bin","b":"3.bin"})"),
                StartsWith((dir / "3.bin").string() + ": is missing, but " + kIndex));
    fs::copy(dir / "1.bin", dir / "3.bin");
    EXPECT_THAT(error_of(dir, R"({"a":"1.bin","b":"3.bin"})"),
                StartsWith((dir / kIndex).string() + ": two of its files hold the tensor 'a'"));
    EXPECT_THAT(error_of(dir, R"({"a":"../1.bin"})"),
                StartsWith((dir / kIndex).string() + ": names a file outside its directory"));
    fs::remove(dir / kIndex);
    EXPECT_THAT(error_of(dir), HasSubstr(kIndex));
  }
}

TEST(ShardedTensors, EveryFileIsComparedWithItsChecksum) {
  for (const bool safetensors : {false, true}) {
    const TestDirectory dir;
    write_two(dir, safetensors);
    FileSums sums;
    for (const std::string& name : dir.names()) {
      const std::string bytes = dir.read(name);
      sums[name] = checksum_of(bytes.data(), bytes.size());
    }
    EXPECT_EQ(read_sharded(dir / kIndex, sums).contents.tensors.size(), 2u);
    for (const std::string& name : dir.names()) {
      FileSums other = sums;
      other[name].xxh3 ^= 1;
      EXPECT_THAT(error_of(dir, other), StartsWith((dir / name).string() + ": its checksum is"));
    }
  }
}

TEST(ShardedTensors, CodeInAFileIsRefusedByName) {
  const TestDirectory dir;
  write_two(dir, /*safetensors=*/false);
  fs::copy(seed("command.pt"), dir / "2.bin", fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of(dir),
              AllOf(HasSubstr("2.bin: holds the Python object"), HasSubstr("'posix.system'")));
}

TEST(ShardedTensors, BadIndexIsOneLine) {
  for (const char* json : {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"../x"}})",
                           R"({"weight_map":{"a":"/etc/passwd"}})", R"({"weight_map":{"a":""}})"}) {
    EXPECT_THAT(message_of<CheckpointError>([&] { parse_weight_map(json, "i"); }),
                AllOf(StartsWith("i: "), Not(HasSubstr("\n"))))
        << json;
  }
}

}  // namespace lockstep::inline v0::sharded_tensors_test
