#include "lockstep/plan/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan::machine_test {
namespace {

using ::testing::HasSubstr;

// Links whose times are exact: 1 s a message, 1 byte a second; between hosts ten times as slow.
Machine simple(int ranks_per_host) {
  return {.name = "simple",
          .ranks_per_host = ranks_per_host,
          .float32 = 1,
          .memory = 1,
          .memory_bandwidth = 1,
          .inside = {1, 1},
          .between = {10, 0.1}};
}

TEST(Machine, TheTableMakesSense) {
  for (const std::string& name : machine_names()) {
    const Machine& machine = known_machine(name);
    EXPECT_NO_THROW(check(machine)) << name;
    EXPECT_FALSE(machine.sources.empty()) << name;
    EXPECT_GE(machine.peak(Precision::kFloat8), machine.peak(Precision::kBFloat16)) << name;
    EXPECT_GE(machine.peak(Precision::kBFloat16), machine.peak(Precision::kFloat32)) << name;
  }
  EXPECT_EQ(known_machine("a64fx").peak(Precision::kFloat8), known_machine("a64fx").float32);
}

TEST(Machine, JsonReadsWhatItWrote) {
  for (const std::string& name : machine_names())
    EXPECT_EQ(machine_from_json(to_json(known_machine(name)), "x.json"), known_machine(name));
  for (const std::string& name : stack_names())
    EXPECT_EQ(stack_from_json(to_json(known_stack(name)), "x.json"), known_stack(name)) << name;
}

TEST(Machine, ACollectiveMayHaveALinkOfItsOwn) {
  Machine machine = known_machine("xeon-8480");
  const double before =
      collective_time(Collective::kAllGather, 1e6, {.ranks = 2, .per_host = 2}, machine);
  const double sum =
      collective_time(Collective::kAllReduce, 1e6, {.ranks = 2, .per_host = 2}, machine);
  machine.collectives[Collective::kAllGather] = {.latency = machine.inside.latency,
                                                 .bandwidth = 2 * machine.inside.bandwidth};
  EXPECT_LT(collective_time(Collective::kAllGather, 1e6, {.ranks = 2, .per_host = 2}, machine),
            before);
  EXPECT_EQ(collective_time(Collective::kAllReduce, 1e6, {.ranks = 2, .per_host = 2}, machine),
            sum);
  machine.processors = 2;
  EXPECT_EQ(machine_from_json(to_json(machine), "x.json"), machine);
}

TEST(Machine, RefusesInOneLine) {
  const auto line = [](const char* text) {
    return message_of<InvalidArgument>([&] { machine_from_json(text, "m.json"); });
  };
  EXPECT_THAT(message_of<InvalidArgument>([] { known_machine("h10"); }), HasSubstr("h100"));
  EXPECT_THAT(line(R"({"float32": 1, "memory": 1, "memory_bandwidth": 1, "inside": {"bandwidth": 1},
                       "between": {"bandwidth": 1}, "collectives": {"all_sum": {}}})"),
              HasSubstr("collectives.all_sum is no collective"));
  EXPECT_THAT(line(R"({"float32": 1})"), HasSubstr("memory is missing"));
  EXPECT_THAT(line(R"({"flops": 1})"), HasSubstr("flops is no field"));
  EXPECT_THAT(line(R"({"float32": -1})"), HasSubstr("float32"));
  EXPECT_THAT(message_of<InvalidArgument>([] { stack_from_json(R"({"matrix": 2})", "s.json"); }),
              HasSubstr("matrix"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_precision("fp7"); }), HasSubstr("float8"));
}

// Thakur et al. 2005: a ring of p ranks takes 2 (p - 1) steps and 2 (p - 1) / p of the bytes.
TEST(CollectiveTime, OneHostsRingIsTheFormula) {
  const Machine machine = simple(4);
  const GroupPlace four{.ranks = 4, .per_host = 4};
  const double many = 1e6;
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllReduce, many, four, machine), 6 + 1.5 * many);
  // All-gather by doubling has fewer steps and as many bytes.
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllGather, many, four, machine), 2 + 0.75 * many);
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllToAll, many, four, machine), 1 + 0.75 * many);
  EXPECT_DOUBLE_EQ(collective_time(Collective::kSend, many, four, machine), 1 + many);
  // A tree for short messages: 2 log2(p) steps.
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllReduce, 0, four, machine), 4);
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllReduce, many, {.ranks = 1}, machine), 0);
}

TEST(CollectiveTime, HalfOfTheLinksTakesTwice) {
  const GroupPlace two{.ranks = 2, .per_host = 2};
  EXPECT_DOUBLE_EQ(collective_time(Collective::kAllReduce, 1000, two, simple(2), 0.5), 2 + 2000);
}

TEST(CollectiveTime, HostsSendOverAllTheirLinks) {
  const Machine machine = simple(8);
  const double bytes = 1e9;
  const double wide =
      collective_time(Collective::kAllReduce, bytes, {.ranks = 32, .per_host = 8}, machine);
  const double narrow =
      collective_time(Collective::kAllReduce, bytes, {.ranks = 32, .per_host = 1}, machine);
  EXPECT_LT(wide, narrow / 4);
  // No faster than the links between four hosts, each of which has eight of a tenth.
  EXPECT_GE(wide, 2 * bytes * 3 / 4 / 0.8);
}

TEST(CollectiveTime, AlmostTheBusBandwidthOfPublishedMachines) {
  // 8 A100 over NVLink: nccl-tests' bus bandwidth of a large all-reduce is at most 235 GB/s.
  const Machine& a100 = known_machine("a100-80");
  const double bytes = 4e9;
  const double seconds =
      collective_time(Collective::kAllReduce, bytes, {.ranks = 8, .per_host = 8}, a100, 0.78);
  EXPECT_NEAR(bytes / seconds * 2 * 7 / 8 / 1e9, 235, 3);
}

}  // namespace
}  // namespace lockstep::inline v0::plan::machine_test
