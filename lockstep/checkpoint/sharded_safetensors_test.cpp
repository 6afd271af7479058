#include "lockstep/checkpoint/sharded_safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::sharded_safetensors_test {

using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

void write_two(const TestDirectory& dir) {
  write_safetensors(dir / "1.safetensors", {{"a", at::ones({2})}, {"c", at::ones({3})}},
                    {{"format", "pt"}});
  write_safetensors(dir / "2.safetensors", {{"b", at::zeros({4})}});
  dir.write(kIndex, R"({"metadata":{"total_size":36},"weight_map":
      {"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"}})");
}

std::string error_of(const TestDirectory& dir) {
  return message_of<CheckpointError>([&] { read_model_safetensors(dir.path()); });
}

TEST(ShardedSafetensors, FilesAreReadAsOne) {
  const TestDirectory dir;
  EXPECT_FALSE(has_model_safetensors(dir.path()));
  EXPECT_THAT(error_of(dir), HasSubstr("has neither model.safetensors nor"));
  write_two(dir);
  EXPECT_TRUE(has_model_safetensors(dir.path()));
  const Safetensors model = read_model_safetensors(dir.path());
  ASSERT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(model.find("b")->numel(), 4);
  EXPECT_EQ(model.find("c")->numel(), 3);
  EXPECT_EQ(model.metadata.at("format"), "pt");
}

TEST(ShardedSafetensors, WholeFileGoesFirst) {
  const TestDirectory dir;
  write_two(dir);
  write_safetensors(dir / "model.safetensors", {{"z", at::ones({1})}});
  EXPECT_NE(read_model_safetensors(dir.path()).find("z"), nullptr);
}

}  // namespace lockstep::inline v0::sharded_safetensors_test
