#include "lockstep/wire/unauthenticated_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {
namespace unauthenticated_peers_test {

TEST(UnauthenticatedPeers, TheOldestOfTheLargestCrowdGivesWay) {
  UnauthenticatedPeers strangers(4);
  EXPECT_FALSE(strangers.first_to_go());
  strangers.add(1, "10.0.0.1");
  for (uint64_t id = 2; id <= 4; ++id) strangers.add(id, "10.0.0.2");
  EXPECT_FALSE(strangers.too_many());
  strangers.add(5, "process 7");
  EXPECT_TRUE(strangers.too_many());
  EXPECT_EQ(strangers.oldest(), 1U);
  EXPECT_EQ(strangers.first_to_go(), 2U) << "the first is older, but alone where it comes from";
  strangers.remove(2);
  EXPECT_FALSE(strangers.too_many());
  strangers.remove(3);
  EXPECT_EQ(strangers.first_to_go(), 1U) << "among equals the oldest";
  strangers.remove(1);
  strangers.remove(1);
  EXPECT_EQ(strangers.first_to_go(), 4U);
  EXPECT_EQ(strangers.size(), 2U);
}

// However many connect from one place, a connection from another place is never the one dropped.
TEST(UnauthenticatedPeers, AStormDoesNotPushOutOneFromElsewhere) {
  UnauthenticatedPeers strangers(16);
  strangers.add(0, "process 1");
  for (uint64_t id = 1; id < 10'000; ++id) {
    strangers.add(id, "process 2");
    while (strangers.too_many()) {
      ASSERT_NE(strangers.first_to_go(), 0U);
      strangers.remove(*strangers.first_to_go());
    }
  }
  EXPECT_EQ(strangers.size(), 16U);
}

TEST(UnauthenticatedPeers, LinesBecomeRare) {
  std::vector<uint64_t> said;
  for (uint64_t count = 1; count <= 12'345; ++count)
    if (worth_a_line(count)) said.push_back(count);
  EXPECT_THAT(said, testing::ElementsAre(1, 10, 100, 1000, 10'000));
  EXPECT_FALSE(worth_a_line(UINT64_MAX));
}

TEST(UnauthenticatedPeers, TheKernelSaysWhereTheyComeFrom) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd one(fds[0]), two(fds[1]);
  EXPECT_EQ(source_of(one.get()), "process " + std::to_string(::getpid()));
  const UniqueFd listener = listen_tcp({"127.0.0.1", 0});
  const UniqueFd client = connect_tcp(local_address(listener.get()), Deadline::seconds(20));
  EXPECT_EQ(source_of(client.get()), "127.0.0.1");
}

TEST(UnauthenticatedPeers, HalfOfTheDescriptorsAreForOthers) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{std::min<rlim_t>(before.rlim_max, 200), before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  EXPECT_EQ(most_unauthenticated(1024), 100U);
  EXPECT_EQ(most_unauthenticated(10), 10U);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace unauthenticated_peers_test
}  // namespace lockstep::inline v0::wire
