
#include <gtest/gtest.h>

#include "lockstep/comm/side_channel/side_channel.h"
#include "lockstep/core/errors.h"

namespace lockstep::side_channel_test {
namespace {

Call all_reduce_of(int64_t count, std::source_location site = std::source_location::current()) {
  Call call;
  call.op = Op::kAllReduce;
  call.dtype = at::kFloat;
  call.count = count;
  call.sequence = 7;
  call.site = site;
  return call;
}

TEST(SideChannel, AMismatchNamesEachCallOnceWithItsRanks) {
  const auto same = make_record(all_reduce_of(3));
  const auto other = make_record(all_reduce_of(4));
  const std::string text = side_channel::mismatch_text({same, other, same});
  EXPECT_NE(text.find(" ranks 0, 2: #7 all_reduce sum float32 x 3 at side_channel_test.cpp:"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(" rank 1: #7 all_reduce sum float32 x 4 at "), std::string::npos) << text;
}

TEST(SideChannel, EveryFailureHasItsException) {
  using side_channel::Failure;
  EXPECT_THROW(side_channel::throw_failure(Failure::kTimeout, -1, "x"), Timeout);
  EXPECT_THROW(side_channel::throw_failure(Failure::kMismatch, -1, "x"), Mismatch);
  EXPECT_THROW(side_channel::throw_failure(Failure::kOther, 2, "x"), PeerLost);
  try {
    side_channel::throw_failure(Failure::kPeerLost, 2, "x");
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 2);
  }
}

}  // namespace
}  // namespace lockstep::side_channel_test
