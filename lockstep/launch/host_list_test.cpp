#include "lockstep/launch/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::launch {
namespace host_list_test {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HostList, HostsWithTheirSlots) {
  EXPECT_THAT(parse_hosts("a:2,b:3,c"),
              ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 3}, HostSlots{"c", 1}));
  EXPECT_THAT(parse_hosts("me@a.b.c:4"), ElementsAre(HostSlots{"me@a.b.c", 4}));
  EXPECT_THAT(parse_hosts("10.0.0.1:2,[fd00::7]:2,[::1]"),
              ElementsAre(HostSlots{"10.0.0.1", 2}, HostSlots{"fd00::7", 2}, HostSlots{"::1", 1}));
  EXPECT_THAT(parse_hosts("a:2,b,a"), ElementsAre(HostSlots{"a", 3}, HostSlots{"b", 1}));
}

TEST(HostList, WrongListsAreQuoted) {
  for (const char* text : {"", "a,", "a:0", "a:x", ":2", "-oProxyCommand=x", "[::1]2"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_hosts(text); }),
                HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(HostList, RanksFillTheHostsInOrder) {
  const auto hosts = parse_hosts("a:2,b:2,c:2");
  EXPECT_THAT(fill_hosts(hosts, 3), ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 1}));
  EXPECT_EQ(fill_hosts(hosts, 6).size(), 3u);
  EXPECT_THAT(message_of<InvalidArgument>([&] { fill_hosts(hosts, 7); }),
              HasSubstr("7 ranks do not fit -H, which has 6"));
}

TEST(HostList, RanksGoToHostsByTurnsWhereThatIsAsked) {
  const auto hosts = parse_hosts("a:4,b:1,c:2");
  EXPECT_THAT(fill_hosts(hosts, 2, {.by_node = true}),
              ElementsAre(HostSlots{"a", 1}, HostSlots{"b", 1}));
  EXPECT_THAT(fill_hosts(hosts, 6, {.by_node = true}),
              ElementsAre(HostSlots{"a", 3}, HostSlots{"b", 1}, HostSlots{"c", 2}));
  EXPECT_THAT(fill_hosts(hosts, 7, {.by_node = true}), ElementsAre(hosts[0], hosts[1], hosts[2]));
}

TEST(HostList, MoreRanksThanSlotsOnlyWhereThatIsAsked) {
  const auto hosts = parse_hosts("a:2,b:1");
  EXPECT_EQ(message_of<InvalidArgument>([&] { fill_hosts(hosts, 4, {}, "--hostfile h"); }),
            "4 ranks do not fit --hostfile h, which has 3 slots; give its hosts more (HOST:SLOTS), "
            "start fewer ranks, or give --oversubscribe");
  EXPECT_THAT(fill_hosts(hosts, 6, {.oversubscribe = true}),
              ElementsAre(HostSlots{"a", 4}, HostSlots{"b", 2}));
  EXPECT_THAT(fill_hosts(hosts, 2, {.oversubscribe = true}), ElementsAre(HostSlots{"a", 2}))
      << "nothing changes where they fit";
}

TEST(HostList, HostFilesOfEveryLauncher) {
  EXPECT_THAT(parse_host_file("# the cluster\n\na slots=2 max_slots=4\nme@b:3   # MPICH\nc\n"
                              "[fd00::7]:2\na slots=1\n",
                              "h"),
              ElementsAre(HostSlots{"a", 3}, HostSlots{"me@b", 3}, HostSlots{"c", 1},
                          HostSlots{"fd00::7", 2}));
}

TEST(HostList, WrongHostFilesAreNamedWithTheirLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"a\nb slots=0\n", "h:2: 'slots=0' is not slots=N with at least 1 slot"},
      {"a slots\n", "h:1: 'slots' is not slots=N"},
      {"a gpus=2\n", "h:1: 'gpus=2' is not slots=N"},
      {"-oProxyCommand=x\n", "h:1: '-oProxyCommand=x' is not HOST or HOST:SLOTS"},
      {"a:x\n", "h:1: 'a:x' is not HOST or HOST:SLOTS"},
      {"# nothing\n", "h names no host"}};
  for (const auto& [text, expected] : wrong)
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_host_file(text, "h"); }),
                HasSubstr(expected));
}

TEST(HostList, SlurmNodes) {
  EXPECT_THAT(expand_slurm_nodes("n[001-003,7],gpu1"),
              ElementsAre("n001", "n002", "n003", "n7", "gpu1"));
  EXPECT_THAT(expand_slurm_nodes("node"), ElementsAre("node"));
  EXPECT_THAT(expand_slurm_nodes("a[8-11]-ib"), ElementsAre("a8-ib", "a9-ib", "a10-ib", "a11-ib"));
  EXPECT_THAT(expand_slurm_nodes("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
}

TEST(HostList, WrongSlurmNodesAreQuoted) {
  for (const char* text : {"", "n[1-", "n[3-1]", "n[a]", "a,,b", "n[1-99999999999]"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { expand_slurm_nodes(text); }),
                HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(HostList, NumbersInNamesCountAsNumbers) {
  std::vector<std::string> hosts = {"node10", "node2", "gpu1", "node2b", "node", "node02x3"};
  std::sort(hosts.begin(), hosts.end(), host_before);
  EXPECT_THAT(hosts, ElementsAre("gpu1", "node", "node2", "node2b", "node02x3", "node10"));
  EXPECT_FALSE(host_before("a", "a"));
  EXPECT_NE(host_before("a01", "a1"), host_before("a1", "a01"));
}

}  // namespace host_list_test
}  // namespace lockstep::inline v0::launch
