#include "lockstep/cli/engine/compare/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine::strategies_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StrategiesPlan, AWayIsAStrategyOnItsRanks) {
  const auto ways = parse_ways("zero3,single,naive_ring,single-bf16,zero3");
  ASSERT_EQ(ways.size(), 4u);
  EXPECT_EQ(ways[0].strategy, "zero3");
  EXPECT_FALSE(ways[0].alone || ways[0].bf16);
  EXPECT_EQ(ways[1].strategy, "ddp");
  EXPECT_TRUE(ways[1].alone);
  EXPECT_EQ(ways[2].strategy, "naive-ring");
  EXPECT_EQ(ways[3].name, "single-bf16");
  EXPECT_TRUE(ways[3].alone && ways[3].bf16);
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_ways("dpp"); }),
              HasSubstr("no strategy 'dpp'; did you mean 'ddp'?"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_ways(""); }), HasSubstr("empty"));
}

TEST(StrategiesPlan, EachWayIsALockstepTrain) {
  auto arguments =
      parse_strategies_arguments({"mnist", "--epochs", "2", "--strategies=single,ddp-bf16",
                                  "--nproc", "3", "--scaling", "3,1", "--output", "o", "--lr=0.1"});
  arguments.data = "d";
  const auto jobs = plan_strategies(arguments, {"l", "train"});
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_THAT(jobs[0].command,
              ElementsAre("l", "train", "mnist", "--epochs", "2", "--lr=0.1", "--data", "d",
                          "--nproc", "1", "--strategy", "ddp", "--output", "o/single", "--record",
                          "o/single/run.json", "--quiet"));
  EXPECT_EQ(jobs[0].writes, "ddp");
  EXPECT_THAT(jobs[1].command, testing::IsSupersetOf({"--amp", "bf16", "--nproc", "3"}));
  EXPECT_TRUE(jobs[2].for_scaling);
  EXPECT_EQ(jobs[2].folder, "o/ddp-bf16-ranks-1");
}

TEST(StrategiesPlan, AMeshIsForThoseThatShareCopies) {
  auto arguments = parse_strategies_arguments(
      {"lm", "--mesh", "data=2,shard=2", "--strategies=zero3,ddp", "--scaling", "2"});
  EXPECT_EQ(arguments.nproc, 4);
  const auto jobs = plan_strategies(arguments, {"l", "train"});
  ASSERT_EQ(jobs.size(), 4u);
  EXPECT_THAT(jobs[0].command, testing::IsSupersetOf({"--nproc", "4", "--mesh", "data=2,shard=2"}));
  EXPECT_THAT(jobs[1].command, testing::Not(testing::Contains("--mesh")));
  EXPECT_THAT(jobs[2].command, testing::Not(testing::Contains("--mesh")));  // it has two ranks
  EXPECT_EQ(parse_strategies_arguments({"lm", "--mesh", "data,shard=2"}).nproc, 2);
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { parse_strategies_arguments({"lm", "--mesh", "data=2000"}); }),
              HasSubstr("--nproc is 2000"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                parse_strategies_arguments({"lm", "--mesh", "data=2,shard=2", "--nproc", "3"});
              }),
              HasSubstr("data 2 x shard 2 = 4, but there are 3 ranks"));
}

TEST(StrategiesPlan, WhatCompareChoosesIsNotGiven) {
  const auto says = [](const Arguments& arguments) {
    return message_of<InvalidArgument>([&] { parse_strategies_arguments(arguments); });
  };
  EXPECT_THAT(says({"--strategy", "ddp"}), HasSubstr("--strategy does not go with compare"));
  EXPECT_THAT(says({"--amp=bf16"}), HasSubstr("--amp=bf16 does not go with compare"));
  EXPECT_THAT(says({"--config", "c.json"}), HasSubstr("--config does not go"));
  EXPECT_THAT(says({"text", "--resume"}), HasSubstr("--resume does not go"));
  EXPECT_THAT(says({"--nproc", "0"}), HasSubstr("--nproc is 0"));
  EXPECT_THAT(says({"--timeout", "0"}), HasSubstr("--timeout"));
  EXPECT_THAT(says({"--scaling", "1,x"}), HasSubstr("--scaling has 'x'"));
  EXPECT_THAT(says({"pictures"}), HasSubstr("no recipe 'pictures'"));
}

}  // namespace
}  // namespace lockstep::inline v0::engine::strategies_test
