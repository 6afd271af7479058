#include "lockstep/device/nvtx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/device/fake_nvtx_test.h"

namespace lockstep::inline v0::device::nvtx_test {

using ::testing::ElementsAre;

TEST(Nvtx, ALibtorchWithoutCudaHasNone) {
  if (has_nvtx()) GTEST_SKIP() << "this libtorch was built with CUDA";
  try {
    require_nvtx("nvtx");
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "nvtx is on, and this libtorch was built without CUDA and has no NVTX; leave it "
                 "out, or use a libtorch with CUDA");
  }
  NvtxRange range;
  range.begin("nothing");
}

TEST(Nvtx, RangesLieWithinEachOtherOnTheirThreads) {
  const FakeNvtx nvtx;
  EXPECT_TRUE(has_nvtx());
  require_nvtx("nvtx");
  {
    const NvtxRange never_begun;
    NvtxRange step;
    step.begin("step 3");
    {
      NvtxRange forward;
      forward.begin("forward");
      std::thread([&] {
        NvtxRange other;
        other.begin("other");
        EXPECT_THAT(nvtx.ranges(), ElementsAre("other"));
      }).join();
    }
    NvtxRange backward;
    backward.begin("backward");
    EXPECT_EQ(nvtx.open(), 2U);
  }
  EXPECT_THAT(nvtx.ranges(), ElementsAre("step 3", "step 3/forward", "step 3/backward"));
  EXPECT_EQ(nvtx.open(), 0U);
}

}  // namespace lockstep::inline v0::device::nvtx_test
