#include "lockstep/bench/rpc_figures.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::bench::rpc_figures_test {
namespace {

RpcSeries series(RpcWorkload what, const std::string& contender, const std::vector<double>& p50s) {
  RpcSeries result{.task = {.what = what, .calls = 1000, .bytes = 4'000'000},
                   .contender = contender,
                   .rounds = {}};
  for (const double us : p50s)
    result.rounds.push_back({.operations = 10, .p50_us = us, .p99_us = 2 * us});
  return result;
}

TEST(RpcFigures, RatiosAreRoundByRoundToTheFirstOfTheSameThing) {
  const std::vector<Row> rows = make_rpc_rows({series(RpcWorkload::kSmall, "a", {10, 20, 40}),
                                               series(RpcWorkload::kSmall, "b", {30, 40, 200}),
                                               series(RpcWorkload::kTensor, "c", {1000, 1000}),
                                               series(RpcWorkload::kTensor, "b", {500, 2000})});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_DOUBLE_EQ(rows[0].at("median"), 20);
  EXPECT_DOUBLE_EQ(rows[0].at("p99_us"), 40);
  EXPECT_DOUBLE_EQ(rows[0].at("first_times"), 1);
  EXPECT_EQ(rows[0].at("operations"), 30);
  EXPECT_DOUBLE_EQ(rows[1].at("median"), 40);
  EXPECT_DOUBLE_EQ(rows[1].at("low"), 30);
  EXPECT_DOUBLE_EQ(rows[1].at("high"), 200);
  EXPECT_DOUBLE_EQ(rows[1].at("first_times"), 3);
  EXPECT_DOUBLE_EQ(rows[1].at("first_times_low"), 2);
  EXPECT_DOUBLE_EQ(rows[1].at("first_times_high"), 5);
  EXPECT_DOUBLE_EQ(rows[2].at("first_times"), 1);
  EXPECT_DOUBLE_EQ(rows[3].at("first_times"), 1.25);
}

TEST(RpcFigures, ValuesAreInTheUnitsThatTheySay) {
  const std::vector<Row> rows = make_rpc_rows(
      {series(RpcWorkload::kFlight, "a", {10'000}), series(RpcWorkload::kTensor, "a", {1000})});
  EXPECT_DOUBLE_EQ(rows[0].at("median"), 100'000);  // 1000 calls in 10 ms
  EXPECT_EQ(rows[0].at("unit"), "calls/s");
  EXPECT_DOUBLE_EQ(rows[0].at("p99_us"), 0);
  EXPECT_DOUBLE_EQ(rows[1].at("median"), 4);  // 4 MB in 1 ms
  EXPECT_EQ(rows[1].at("unit"), "GB/s");
}

TEST(RpcFigures, TableAndPictureSayWhoIsCompared) {
  const std::vector<Row> rows = make_rpc_rows(
      {series(RpcWorkload::kSmall, "ours", {10}), series(RpcWorkload::kSmall, "its", {25})});
  const std::string table = rpc_table(rows);
  EXPECT_NE(table.find("ours is so many times as fast"), std::string::npos) << table;
  EXPECT_NE(table.find("2.50"), std::string::npos) << table;
  EXPECT_EQ(table.find("small", table.find("small") + 1), std::string::npos) << table;
  const std::string svg = rpc_svg(rows);
  EXPECT_NE(svg.find("small: its"), std::string::npos);
  EXPECT_NE(svg.find("25.00 us p50"), std::string::npos);
  EXPECT_NE(svg.find("times as long as the fastest"), std::string::npos);
  EXPECT_NE(svg.find(">1×<"), std::string::npos);
  EXPECT_NE(svg.find(">2×<"), std::string::npos);
  EXPECT_EQ(rows[1].at("contender"), "its");
  EXPECT_EQ(rows[1].at("first_times"), 2.5);
}

TEST(RpcFigures, UnknownThingsAreToldTheChoices) {
  EXPECT_EQ(parse_rpc_workloads("tensor,small"),
            (std::vector<RpcWorkload>{RpcWorkload::kTensor, RpcWorkload::kSmall}));
  EXPECT_NE(message_of<InvalidArgument>([] {
              parse_rpc_workloads("small,large");
            }).find("'large'; choose from small, flight, tensor"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::inline v0::bench::rpc_figures_test
