// Which processors mpirun's --bind-to and --map-by give to the ranks of a host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/internal/message_json.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/topology.h"

namespace lockstep::inline v0::launch {
namespace binding_test {

using testing::ElementsAre;
using testing::HasSubstr;

// Two sockets of two NUMA nodes each, a node of two cores, a core of two hardware threads, numbered
// as Linux does: processor p and p + 8 are one core.
std::vector<Processor> machine() {
  std::vector<Processor> processors;
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int core = cpu % 8;
    processors.push_back({.cpu = cpu, .core = core, .numa = core / 2, .socket = core / 4});
  }
  return processors;
}

std::vector<std::string> lists_of(const Binding& binding, int ranks,
                                  const std::vector<Processor>& processors = machine()) {
  std::vector<std::string> lists;
  for (const RankCpus& rank : bound_cpus(processors, binding, ranks))
    lists.push_back(cpu_list(rank.cpus) + "/" + std::to_string(rank.threads));
  return lists;
}

TEST(Binding, ACoreForEachRankIsWithBothItsThreadsAndOneThreadOfWork) {
  EXPECT_THAT(lists_of({.given = true}, 3), ElementsAre("0,8/1", "1,9/1", "2,10/1"));
}

TEST(Binding, SeveralCoresForEachRank) {
  EXPECT_THAT(lists_of({.given = true, .cores = 4}, 2), ElementsAre("0-3,8-11/4", "4-7,12-15/4"));
}

TEST(Binding, HardwareThreadsOfOneCoreFollowEachOther) {
  EXPECT_THAT(lists_of({.given = true, .to = CpuUnit::kHwthread, .by = CpuUnit::kHwthread}, 3),
              ElementsAre("0/1", "8/1", "1/1"));
}

TEST(Binding, SocketsByTurnsOrInOrder) {
  const Binding by_turns{.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket};
  EXPECT_THAT(lists_of(by_turns, 2), ElementsAre("0-3,8-11/4", "4-7,12-15/4"));
  EXPECT_THAT(lists_of(by_turns, 3), ElementsAre("0-3,8-11/2", "4-7,12-15/4", "0-3,8-11/2"))
      << "ranks of one socket share its cores";
  EXPECT_THAT(lists_of({.given = true, .to = CpuUnit::kSocket}, 2),
              ElementsAre("0-3,8-11/2", "0-3,8-11/2"))
      << "in the order of cores, the first ranks are on the first socket";
}

TEST(Binding, RanksInARowOnAUnit) {
  EXPECT_THAT(
      lists_of({.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket, .in_a_row = 2}, 4),
      ElementsAre("0-3,8-11/2", "0-3,8-11/2", "4-7,12-15/2", "4-7,12-15/2"));
  EXPECT_THAT(
      lists_of({.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket, .in_a_row = 2}, 3),
      ElementsAre("0-3,8-11/2", "0-3,8-11/2", "4-7,12-15/4"));
  EXPECT_THAT(lists_of({.given = true, .by = CpuUnit::kSocket, .in_a_row = 2}, 4),
              ElementsAre("0,8/1", "1,9/1", "4,12/1", "5,13/1"));
}

TEST(Binding, CoresTakenFromNumaNodesByTurns) {
  EXPECT_THAT(lists_of({.given = true, .by = CpuUnit::kNuma}, 5),
              ElementsAre("0,8/1", "2,10/1", "4,12/1", "6,14/1", "1,9/1"));
  EXPECT_THAT(lists_of({.given = true, .by = CpuUnit::kSocket, .cores = 2}, 4),
              ElementsAre("0-1,8-9/2", "4-5,12-13/2", "2-3,10-11/2", "6-7,14-15/2"));
}

TEST(Binding, OnlyAllowedProcessorsAreGiven) {
  const std::vector<Processor> all = machine();
  const std::vector<Processor> allowed = {all[1], all[5], all[13]};
  EXPECT_THAT(lists_of({.given = true}, 2, allowed), ElementsAre("1/1", "5,13/1"));
}

// Of one socket a single core is allowed; ppr:2:socket is still two ranks on each.
TEST(Binding, SocketsByTurnsCountOnceEach) {
  std::vector<Processor> allowed = machine();
  std::erase_if(allowed, [](const Processor& one) { return one.core > 0 && one.core < 4; });
  EXPECT_THAT(lists_of({.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket}, 4, allowed),
              ElementsAre("0,8/1", "4-7,12-15/2", "0,8/1", "4-7,12-15/2"));
}

TEST(Binding, MoreRanksThanCoresAreRefusedUnlessTheyMayShare) {
  EXPECT_EQ(message_of<InvalidArgument>([] { bound_cpus(machine(), {.given = true}, 9); }),
            "9 ranks with 1 core each do not fit this host, which allows 8 cores; start fewer "
            "ranks, or leave --bind-to and --map-by out");
  EXPECT_THAT(
      message_of<InvalidArgument>([] { bound_cpus(machine(), {.given = true, .cores = 9}, 1); }),
      HasSubstr("1 rank with 9 cores does not fit this host"));
  EXPECT_EQ(lists_of({.given = true, .overload = true}, 9).back(), "0,8/1");
  EXPECT_EQ(lists_of({.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket}, 40).size(),
            40U);
}

TEST(Binding, NoRankHasAnothersCore) {
  for (const CpuUnit by : {CpuUnit::kCore, CpuUnit::kNuma, CpuUnit::kSocket}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      std::set<int> seen;
      for (const RankCpus& rank : bound_cpus(machine(), {.given = true, .by = by}, ranks))
        for (const int cpu : rank.cpus) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
      EXPECT_EQ(seen.size(), static_cast<size_t>(2 * ranks));
    }
  }
}

TEST(Binding, UnitsAndLists) {
  EXPECT_EQ(unit_count(machine(), CpuUnit::kSocket), 2);
  EXPECT_EQ(unit_count(machine(), CpuUnit::kNuma), 4);
  EXPECT_EQ(unit_count(machine(), CpuUnit::kCore), 8);
  EXPECT_EQ(unit_count(machine(), CpuUnit::kHwthread), 16);
  EXPECT_EQ(cpu_list({}), "");
  EXPECT_EQ(cpu_list({0, 1, 2, 3, 8}), "0-3,8");
}

TEST(Binding, AgentsOfOtherHostsAreToldIt) {
  LaunchOptions options;
  options.command = {"x"};
  options.binding = {.given = true, .to = CpuUnit::kNuma, .by = CpuUnit::kSocket, .cores = 3};
  options.report_bindings = true;
  const nlohmann::json json = options;
  const auto told = json.get<LaunchOptions>();
  EXPECT_EQ(told.binding, options.binding);
  EXPECT_TRUE(told.report_bindings);
}

TEST(Topology, IsReadFromTheSystemsDescription) {
  const TestDirectory folder;
  const auto describe = [&](int cpu, const char* core, const char* socket, const char* node) {
    const auto at = folder.path() / "cpu" / ("cpu" + std::to_string(cpu));
    std::filesystem::create_directories(at / "topology");
    std::filesystem::create_directories(at / node);
    std::ofstream(at / "topology" / "core_id") << core << "\n";
    std::ofstream(at / "topology" / "physical_package_id") << socket << "\n";
  };
  describe(0, "0", "0", "node0");
  describe(1, "0", "1", "node3");
  describe(2, "0", "0", "node0");
  EXPECT_THAT(read_topology({0, 1, 2, 7}, folder.path()),
              ElementsAre(Processor{.cpu = 0, .core = 0, .numa = 0, .socket = 0},
                          Processor{.cpu = 1, .core = 1, .numa = 3, .socket = 1},
                          Processor{.cpu = 2, .core = 0, .numa = 0, .socket = 0},
                          Processor{.cpu = 7, .core = 2, .numa = 0, .socket = 0}))
      << "core 0 of socket 1 is another one; processor 7 is not described";
  EXPECT_EQ(read_topology(allowed_cpus()).size(), allowed_cpus().size());
}

}  // namespace binding_test
}  // namespace lockstep::inline v0::launch
