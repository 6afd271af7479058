// A CUDA build of libtorch has devices of its own: nothing here can run.
#include <gtest/gtest.h>

#include "lockstep/testing/fake_cuda/fake_cuda.h"

namespace lockstep::inline v0::testing {
namespace {

class WithoutCuda final : public ::testing::Environment {
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  }
};

[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new WithoutCuda);

}  // namespace
}  // namespace lockstep::inline v0::testing
