// Files that Python's torch.save wrote (tests/fuzz/seeds/make_pt.py).
#include "lockstep/checkpoint/pt_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pt_file_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path seed(const std::string& name) {
  return std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/pt_fuzz" / (name + ".pt");
}
std::string error_of(const std::string& name) {
  return message_of<CheckpointError>([&] { read_pt(seed(name)); });
}

TEST(PtFile, StateDictOfAModule) {
  const PtFile file = read_pt(seed("linear"));
  EXPECT_EQ(file.found_in, "");
  ASSERT_EQ(file.contents.tensors.size(), 2u);
  EXPECT_EQ(file.contents.find("weight")->sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_EQ(file.contents.find("bias")->scalar_type(), at::kFloat);
  EXPECT_NE(read_pt(seed("wrapped")).contents.find("module.weight"), nullptr);
}

TEST(PtFile, EveryDtype) {
  const PtFile file = read_pt(seed("dtypes"));
  EXPECT_EQ(file.contents.tensors.size(), 17u);
  const std::pair<const char*, at::ScalarType> expected[] = {{"float32", at::kFloat},
                                                             {"float64", at::kDouble},
                                                             {"float16", at::kHalf},
                                                             {"bfloat16", at::kBFloat16},
                                                             {"int64", at::kLong},
                                                             {"int32", at::kInt},
                                                             {"int16", at::kShort},
                                                             {"int8", at::kChar},
                                                             {"uint8", at::kByte},
                                                             {"uint16", at::kUInt16},
                                                             {"uint32", at::kUInt32},
                                                             {"uint64", at::kUInt64},
                                                             {"bool", at::kBool},
                                                             {"complex64", at::kComplexFloat},
                                                             {"complex128", at::kComplexDouble},
                                                             {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                             {"float8_e5m2", at::kFloat8_e5m2}};
  for (const auto& [name, dtype] : expected) {
    const at::Tensor* tensor = file.contents.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->scalar_type(), dtype) << name;
    const at::Tensor values = at::real(tensor->to(at::kComplexDouble));
    EXPECT_TRUE(at::equal(values, at::tensor({0.0, 1.0, 1.0}, at::kDouble))) << name;
  }
}

TEST(PtFile, ViewsOfACheckpointsModel) {
  const PtFile file = read_pt(seed("checkpoint"));
  EXPECT_EQ(file.found_in, "model");
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  const Safetensors& contents = file.contents;
  EXPECT_TRUE(at::equal(*contents.find("transposed"), base.t()));
  EXPECT_TRUE(at::equal(*contents.find("part"), base.slice(0, 1, 3).slice(1, 0, 6, 2)));
  EXPECT_TRUE(at::equal(*contents.find("parameter"), base));
  EXPECT_TRUE(at::equal(*contents.find("expanded"), at::ones({1000})));
  EXPECT_EQ(contents.find("empty")->sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(contents.find("scalar")->item<float>(), 2.5f);
  // Tied weights share one memory, which is separate from the file's.
  contents.find("tied")->fill_(1);
  EXPECT_TRUE(at::equal(*contents.find("transposed"), at::ones({6, 4})));
  EXPECT_TRUE(at::equal(*read_pt(seed("checkpoint")).contents.find("tied"), base));
  EXPECT_EQ(contents.metadata.at("epoch"), "3");
  EXPECT_EQ(contents.metadata.at("lr"), "0.125");
  EXPECT_EQ(contents.metadata.at("name"), "\xE4\xB8\xAD");
  EXPECT_EQ(contents.metadata.at("negative"), "-1099511627776");
  EXPECT_EQ(contents.metadata.at("done"), "true");
  EXPECT_THAT(file.left_out, ElementsAre("optimizer", "best", "big", "shape", "device", "dtype"));
}

TEST(PtFile, WithoutChecksums) {
  EXPECT_TRUE(
      at::equal(*read_pt(seed("without_crc")).contents.find("w"), at::tensor({1.5f, -2.0f})));
}

TEST(PtFile, OthersAreRefusedByName) {
  EXPECT_THAT(error_of("command"), AllOf(HasSubstr("command.pt: holds the Python object"),
                                         HasSubstr("'posix.system'"), Not(HasSubstr("\n"))));
  EXPECT_THAT(error_of("namespace"), HasSubstr("'argparse.Namespace'"));
  EXPECT_THAT(error_of("whole_module"), HasSubstr("'torch.nn.modules.linear.Linear'"));
  EXPECT_THAT(error_of("sparse"), HasSubstr("'torch._utils._rebuild_sparse_tensor'"));
  EXPECT_THAT(error_of("conjugate"), HasSubstr("tensor 'w' is a lazy view"));
  EXPECT_THAT(error_of("one_tensor"), HasSubstr("no dict of tensors"));
  EXPECT_THAT(error_of("no_tensor"), HasSubstr("only the keys 'a'"));
  EXPECT_THAT(error_of("protocol4"), HasSubstr("pickle protocol 4"));
  EXPECT_THAT(error_of("legacy"), HasSubstr("before PyTorch 1.6; load it in Python"));
  EXPECT_THAT(error_of("script"), HasSubstr("TorchScript archive"));
  EXPECT_THAT(error_of("nothing"), HasSubstr("cannot open"));
}

}  // namespace lockstep::inline v0::pt_file_test
