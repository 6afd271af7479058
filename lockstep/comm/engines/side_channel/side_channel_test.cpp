
#include <gtest/gtest.h>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/side_channel/side_channel.h"

namespace lockstep::inline v0::side_channel_test {
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

}  // namespace
}  // namespace lockstep::inline v0::side_channel_test
