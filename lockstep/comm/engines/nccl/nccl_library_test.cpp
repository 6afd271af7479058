#include "lockstep/comm/engines/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "lockstep/comm/engines/nccl/nccl_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/hash_store.h"

// Compares Lockstep's declarations with NVIDIA's, if they are installed.
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define LOCKSTEP_HAS_NCCL_H 1
#endif

namespace lockstep::inline v0::nccl_library_test {
namespace {

TEST(NcclLibrary, DeclarationsAreThoseOfNcclH) {
#ifndef LOCKSTEP_HAS_NCCL_H
  GTEST_SKIP() << "no nccl.h with CUDA headers here: apt install libnccl-dev to run this test";
#else
  static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
  static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
  static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
  static_assert(int{nccl::kInProgress} == int{ncclInProgress});
  static_assert(int{nccl::kUint8} == int{ncclUint8} && int{nccl::kInt64} == int{ncclInt64});
  static_assert(int{nccl::kFloat32} == int{ncclFloat32} && int{nccl::kInt32} == int{ncclInt32});
  static_assert(int{nccl::kFloat64} == int{ncclFloat64} && int{nccl::kInt8} == int{ncclInt8});
  static_assert(int{nccl::kSum} == int{ncclSum} && int{nccl::kProduct} == int{ncclProd});
  static_assert(int{nccl::kMax} == int{ncclMax} && int{nccl::kMin} == int{ncclMin});
  static_assert(int{nccl::kAvg} == int{ncclAvg});
  // The same number of arguments, each passed in the same way.
  static_assert(std::is_invocable_v<decltype(&ncclAllReduce), const void*, void*, size_t,
                                    ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t>);
  static_assert(std::is_invocable_v<decltype(&ncclReduce), const void*, void*, size_t,
                                    ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t>);
  static_assert(std::is_invocable_v<decltype(&ncclCommInitRankConfig), ncclComm_t*, int,
                                    ncclUniqueId, int, ncclConfig_t*>);
  SUCCEED();
#endif
}

TEST(NcclLibrary, WithoutNcclTheErrorSaysWhereItComesFrom) {
  try {
    const nccl::Library library("libnccl-that-nobody-has.so.2");
    ADD_FAILURE() << "no exception";
  } catch (const LaunchError& error) {
    EXPECT_NE(std::string(error.what()).find("scripts/quickstart --cuda"), std::string::npos)
        << error.what();
  }
}

// One rank on one device, if there is one.
TEST(NcclBackend, ConnectsOrSaysWhatIsMissing) {
  const auto store = std::make_shared<HashStore>();
  std::unique_ptr<Backend> backend;
  try {
    backend = make_nccl_backend(store, {.rank = 0, .size = 1, .device = 0}, Deadline::seconds(60));
  } catch (const LaunchError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    GTEST_SKIP() << error.what();
  }
  Call barrier;
  barrier.sequence = 1;
  backend->run(barrier, std::chrono::seconds(60));
}

}  // namespace
}  // namespace lockstep::inline v0::nccl_library_test
