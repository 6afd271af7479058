#include "lockstep/device/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::device {
namespace {

using ::testing::HasSubstr;

constexpr VisibleDevices kCpuBuild{};
constexpr VisibleDevices kNone{.has_cuda = true, .cuda = 0};
constexpr VisibleDevices kOne{.has_cuda = true, .cuda = 1};
constexpr VisibleDevices kFour{.has_cuda = true, .cuda = 4};

std::string chosen(const std::string& request, int local_rank, const VisibleDevices& visible) {
  return choose_device(request, local_rank, visible).str();
}

std::string refusal(const std::string& request, const VisibleDevices& visible) {
  try {
    choose_device(request, 0, visible, "--device");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(ChooseDevice, RanksOfAHostShareTheDevices) {
  EXPECT_EQ(chosen("cuda", 0, kFour), "cuda:0");
  EXPECT_EQ(chosen("cuda", 3, kFour), "cuda:3");
  EXPECT_EQ(chosen("cuda", 4, kFour), "cuda:0");
  EXPECT_EQ(chosen("cuda", 9, kFour), "cuda:1");
}

TEST(ChooseDevice, OneVisibleDeviceARank) {
  for (const int local_rank : {0, 1, 7}) EXPECT_EQ(chosen("cuda", local_rank, kOne), "cuda:0");
}

TEST(ChooseDevice, ANumberIsTakenAsItIs) {
  for (const int local_rank : {0, 2}) EXPECT_EQ(chosen("cuda:1", local_rank, kFour), "cuda:1");
}

TEST(ChooseDevice, AutoTakesWhatIsThere) {
  EXPECT_EQ(chosen("auto", 5, kFour), "cuda:1");
  EXPECT_EQ(chosen("auto", 5, kNone), "cpu");
  EXPECT_EQ(chosen("auto", 5, kCpuBuild), "cpu");
}

TEST(ChooseDevice, ARankWhoseDeviceFailedTakesOneThatNoRankHas) {
  EXPECT_EQ(device_place(1, 2, std::nullopt, 4), 1);
  EXPECT_EQ(device_place(1, 2, 0, 4), 2);
  EXPECT_EQ(device_place(0, 2, 1, 4), 3);
  EXPECT_EQ(device_place(0, 2, 2, 4), 0) << "there are two spare ones";
  EXPECT_EQ(device_place(1, 2, 0, 2), 1) << "there is none";
  EXPECT_EQ(device_place(5, 8, 0, 4), 5) << "ranks share devices";
}

TEST(ChooseDevice, TheCpuIsAlwaysThere) {
  for (const VisibleDevices& visible : {kCpuBuild, kNone, kFour})
    EXPECT_EQ(chosen("cpu", 1, visible), "cpu");
}

TEST(ChooseDevice, SaysWhatIsMissing) {
  EXPECT_THAT(refusal("cuda", kCpuBuild), HasSubstr("--device 'cuda': this program's libtorch is"));
  EXPECT_THAT(refusal("cuda:0", kCpuBuild), HasSubstr("scripts/quickstart --cuda"));
  EXPECT_THAT(refusal("cuda", kNone), HasSubstr("--device 'cuda': this process sees no CUDA"));
  EXPECT_THAT(refusal("cuda:0", kNone), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(refusal("cuda:1", kOne), HasSubstr("'cuda:1': this process sees one CUDA device"));
  EXPECT_THAT(refusal("cuda:4", kFour), HasSubstr("sees 4 CUDA devices, cuda:0 to cuda:3"));
  EXPECT_THAT(refusal("cuda:300", kFour), HasSubstr("sees 4 CUDA devices"));
}

TEST(ChooseDevice, KnowsNoOtherRequest) {
  for (const char* request : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:one", "cuda:1 ", "cpu:0",
                              "cuda:99999999999999999999", "xpu"}) {
    for (const VisibleDevices& visible : {kCpuBuild, kFour})
      EXPECT_THAT(refusal(request, visible), HasSubstr("there are cpu, cuda, cuda:0")) << request;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::device
