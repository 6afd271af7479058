#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::safetensors_test {

using ::testing::HasSubstr;

std::string error_of(const std::filesystem::path& path) {
  try {
    read_safetensors(path);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no error";
}

void write_raw(const std::filesystem::path& path, uint64_t length, const std::string& rest) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << rest;
}

TEST(Safetensors, EveryDtypeAndShapeComesBack) {
  const TestDirectory dir;
  NamedTensors tensors;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kShort,
                           at::kInt, at::kLong, at::kByte, at::kBool}) {
    tensors.emplace_back(std::string("t.") + c10::toString(dtype),
                         (at::arange(6) % 2).to(dtype).view({2, 3}));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(1.5));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("strided", at::arange(12).view({3, 4}).t());
  write_safetensors(dir / "a.safetensors", tensors, {{"format", "pt"}, {"\xE4\xB8\xAD", "\n"}});
  const Safetensors back = read_safetensors(dir / "a.safetensors");
  EXPECT_EQ(back.metadata.at("format"), "pt");
  ASSERT_EQ(back.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor* found = back.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(*found, tensor)) << name;
  }
  EXPECT_EQ(back.find("nothing"), nullptr);
}

// A file as Python's safetensors 0.8 wrote it.
TEST(Safetensors, PythonsFileIsReadAndWrittenAlike) {
  const TestDirectory dir;
  std::string header =
      R"({"__metadata__":{"made by":"Python"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},"h":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
      R"("e":{"dtype":"F16","shape":[0,2],"data_offsets":[30,30]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[30,32]}})";
  header.resize(320, ' ');
  const std::string data(
      "\xf9\xff\xff\xff\xff\xff\xff\xff\x00\x00\xc0\x3f\x00\x00\x00\xc0\x00\x00\x40\x40\x00\x00\x80"
      "\x40"
      "\x80\x3f\x00\x3f\x80\xbe\x01\x00",
      32);
  write_raw(dir / "python", 320, header + data);
  const Safetensors file = read_safetensors(dir / "python");
  EXPECT_EQ(file.metadata, (Metadata{{"made by", "Python"}}));
  EXPECT_EQ(file.find("n")->item<int64_t>(), -7);
  EXPECT_TRUE(at::equal(*file.find("w"), at::tensor({1.5f, -2.0f, 3.0f, 4.0f}).view({2, 2})));
  EXPECT_TRUE(at::equal(*file.find("h"), at::tensor({1.0f, 0.5f, -0.25f}).to(at::kBFloat16)));
  EXPECT_EQ(file.find("e")->sizes(), (at::IntArrayRef{0, 2}));
  EXPECT_TRUE(at::equal(*file.find("b"), at::tensor({1, 0}).to(at::kBool)));
  write_safetensors(dir / "ours", file.tensors, file.metadata);
  // The same, except for the header's padding and the order of its members.
  EXPECT_TRUE(dir.read("ours").ends_with(data));
}

TEST(Safetensors, EqualInputGivesEqualBytes) {
  const TestDirectory dir;
  const NamedTensors ab{{"a", at::ones({3})}, {"b", at::zeros({2}, at::kDouble)}};
  const NamedTensors ba{ab[1], ab[0]};
  write_safetensors(dir / "1", ab);
  write_safetensors(dir / "2", ba);
  EXPECT_EQ(dir.read("1"), dir.read("2"));
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"1", "2"}));
}

TEST(Safetensors, FailedWriteLeavesTheFormerFile) {
  const TestDirectory dir;
  write_safetensors(dir / "a", {{"x", at::ones({1})}});
  const std::string before = dir.read("a");
  EXPECT_THROW(write_safetensors(dir / "a", {{"x", at::ones({1})}, {"x", at::ones({1})}}),
               InvalidArgument);
  EXPECT_THROW(write_safetensors(dir / "a", {{"x", at::Tensor()}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(dir / "missing" / "a", {{"x", at::ones({1})}}), SystemError);
  EXPECT_EQ(dir.read("a"), before);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

TEST(Safetensors, BadFilesAreNamed) {
  const TestDirectory dir;
  EXPECT_THAT(error_of(dir / "none"), HasSubstr("none"));
  EXPECT_THAT(error_of(dir.path()), HasSubstr("not a file"));
  dir.write("short", "1234");
  EXPECT_THAT(error_of(dir / "short"), HasSubstr("too short"));
  write_raw(dir / "claims", 1ull << 62, "{}");
  EXPECT_THAT(error_of(dir / "claims"), HasSubstr("claims 4611686018427387904 bytes"));
  write_raw(dir / "long", 100'000'001, "{}");
  EXPECT_THAT(error_of(dir / "long"), HasSubstr("truncated"));
  write_safetensors(dir / "ok", {{"conv.weight", at::ones({100})}});
  const std::string whole = dir.read("ok");
  for (size_t size = 0; size < whole.size(); size += 7) {
    dir.write("cut", whole.substr(0, size));
    EXPECT_THAT(error_of(dir / "cut"), HasSubstr("cut: ")) << size;
  }
  dir.write("cut", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(error_of(dir / "cut"), HasSubstr("'conv.weight'"));
}

// Whatever a byte of the header is changed to, the file is read or refused, without any other
// outcome.
TEST(Safetensors, AnyFlippedHeaderByteIsHandled) {
  const TestDirectory dir;
  write_safetensors(dir / "ok", {{"a", at::ones({2})}, {"b", at::ones({1}, at::kByte)}},
                    {{"k", "v"}});
  const std::string whole = dir.read("ok");
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (size_t at = 0; at < 8 + header; ++at) {
    for (const int flip : {1, 2, 8, 32, 128, 255}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      dir.write("bad", bad);
      try {
        read_safetensors(dir / "bad");
      } catch (const CheckpointError&) {
      }
    }
  }
}

TEST(Safetensors, TensorsAreTheFileButWritesStayHere) {
  const TestDirectory dir;
  write_safetensors(dir / "a", {{"x", at::zeros({1000})}});
  const std::string before = dir.read("a");
  at::Tensor x;
  {
    const Safetensors file = read_safetensors(dir / "a");
    x = *file.find("x");
  }  // the mapping lives as long as the tensor
  x.fill_(7);
  x.add_(1);
  EXPECT_TRUE(x.eq(8).all().item<bool>());
  EXPECT_EQ(dir.read("a"), before);
  EXPECT_TRUE(read_safetensors(dir / "a").find("x")->eq(0).all().item<bool>());
  std::filesystem::remove(dir / "a");
  EXPECT_TRUE(x.eq(8).all().item<bool>());
}

TEST(Safetensors, MisalignedTensorsAreReadToo) {
  const TestDirectory dir;
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  write_raw(dir / "a", header.size(),
            header + std::string("\x05\x00\x00\xc0\x3f\x00\x00\x00\xc0", 9));
  EXPECT_TRUE(at::equal(*read_safetensors(dir / "a").find("w"), at::tensor({1.5f, -2.0f})));
}

TEST(Safetensors, BooleansAreZeroOrOne) {
  const TestDirectory dir;
  const std::string header = R"({"flags":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  write_raw(dir / "a", header.size(), header + std::string("\x01\x02", 2));
  EXPECT_THAT(error_of(dir / "a"), HasSubstr("'flags' has booleans other than 0 and 1"));
}

TEST(Safetensors, ChecksumIsTheFilesAndIsCompared) {
  const TestDirectory dir;
  const FileSum sum =
      write_safetensors(dir / "a", {{"x", at::arange(200'000)}}, {{"format", "pt"}});
  const std::string bytes = dir.read("a");
  EXPECT_EQ(sum, checksum_of(bytes.data(), bytes.size()));
  EXPECT_NO_THROW(read_safetensors(dir / "a", sum));
  EXPECT_THROW(read_safetensors(dir / "a", FileSum{sum.bytes, sum.xxh3 ^ 1}), CheckpointError);
  EXPECT_THROW(read_safetensors(dir / "a", FileSum{sum.bytes + 1, sum.xxh3}), CheckpointError);
}

TEST(Safetensors, NameThatIsNotUtf8IsRefused) {
  const TestDirectory dir;
  EXPECT_THROW(write_safetensors(dir / "a", {{"\xff", at::ones({1})}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(dir / "a", {}, {{"k", "\xff"}}), InvalidArgument);
}

}  // namespace lockstep::inline v0::safetensors_test
