#include "lockstep/bench/rpc.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0::bench::rpc_test {
namespace {

using Names = std::vector<std::string>;

TEST(Rpc, ProgramsThatAreNotThereAreLeftOut) {
  RpcOptions options;
  options.contenders = {"lockstep", "libtorch", "memcpy", "grpc", "libtorch-shm", "ray"};
  leave_out_absent(options);
  EXPECT_EQ(options.contenders, (Names{"lockstep", "memcpy"}));
}

TEST(Rpc, BetweenHostsThereAreThoseWhoSpeakTcp) {
  RpcOptions options;
  options.contenders = {"lockstep", "unix-socket", "tcp-socket", "memcpy"};
  options.listen = "10.77.0.1";
  leave_out_absent(options);
  EXPECT_EQ(options.contenders, (Names{"lockstep", "tcp-socket"}));
}

}  // namespace
}  // namespace lockstep::inline v0::bench::rpc_test
