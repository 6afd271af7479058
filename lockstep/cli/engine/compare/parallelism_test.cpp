#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/cli/engine/compare/parallelism.h"
#include "lockstep/cli/engine/compare/parallelism_rank.h"
#include "lockstep/cli/engine/compare/parallelism_report.h"
#include "lockstep/cli/engine/compare/parallelism_ways.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine::parallelism_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

DividedWay way_of(const DividedSettings& settings, const std::string& name) {
  for (const DividedWay& way : plan_divided(settings).ways)
    if (way.name == name) return way;
  throw InvalidArgument("no way " + name);
}

TEST(ParallelismPlan, EveryWayAndThreeProducts) {
  const DividedPlan plan = plan_divided({});
  std::vector<std::string> names;
  for (const DividedWay& way : plan.ways) names.push_back(way.name);
  EXPECT_THAT(names,
              testing::ElementsAre("data=4", "data=4 zero 1", "data=4 zero 3", "pipe=4", "tensor=4",
                                   "tensor=4 rows", "context=4", "expert=4", "data=2,pipe=2",
                                   "data=2,tensor=2 zero 1", "pipe=2,tensor=2"));
  EXPECT_TRUE(plan.left_out.empty());
  EXPECT_TRUE(plan.ways[7].experts);
  EXPECT_TRUE(plan.ways[5].how.divides_rows);
  EXPECT_EQ(plan.ways[9].how.zero, 1);
}

TEST(ParallelismPlan, WhatDoesNotFitIsLeftOutWithItsReason) {
  const DividedPlan plan = plan_divided({.nproc = 3, .batch = 9});  // 4 heads, 128 tokens
  std::map<std::string, std::string> why;
  for (const LeftOutWay& left : plan.left_out) why[left.name] = left.why;
  EXPECT_EQ(why.size(), 6u);
  EXPECT_THAT(why.at("tensor=3"), HasSubstr("3"));
  EXPECT_THAT(why.at("context=3"), HasSubstr("do not divide into 6 blocks; give --length"));
  EXPECT_THAT(why.at("data x pipe"), HasSubstr("give --nproc an even number from 4"));
  EXPECT_EQ(plan.ways.size(), 5u);
  const DividedPlan odd = plan_divided({.batch = 6});
  ASSERT_FALSE(odd.left_out.empty());
  EXPECT_EQ(odd.left_out[0].name, "data=4");
  EXPECT_THAT(odd.left_out[0].why, HasSubstr("a batch of 6 does not divide among 4 rows"));
}

TEST(ParallelismPlan, BadInputIsOneLine) {
  const auto says = [](Arguments words) {
    words.insert(words.begin(), "--parallelism");
    return message_of<InvalidArgument>([&] { parse_parallelism_arguments(words); });
  };
  EXPECT_THAT(says({"--nproc", "1"}), HasSubstr("--nproc is 1; give 2 to 64"));
  EXPECT_THAT(says({"--steps", "0"}), HasSubstr("--steps is 0"));
  EXPECT_THAT(says({"--model", "tinny"}), HasSubstr("tiny"));
  EXPECT_THAT(says({"--hidden", "30", "--heads", "4"}), HasSubstr("head"));
  EXPECT_THAT(says({"--timeout", "0"}), HasSubstr("--timeout"));
  EXPECT_EQ(parse_parallelism_arguments({"--parallelism", "--layers", "2"}).settings.layers, 2);
}

TEST(ParallelismTheory, ParametersGradientsAndState) {
  const DividedSettings settings;
  const double whole = 4.0 * static_cast<double>(parameter_count(divided_model(settings, false)));
  const auto theory = [&](const std::string& name) {
    return theory_of(way_of(settings, name), settings);
  };
  EXPECT_DOUBLE_EQ(theory("data=4").parameters, whole);
  EXPECT_DOUBLE_EQ(theory("data=4").state, 2 * whole);
  EXPECT_DOUBLE_EQ(theory("data=4 zero 1").parameters, whole);
  EXPECT_DOUBLE_EQ(theory("data=4 zero 1").gradients, whole);
  EXPECT_DOUBLE_EQ(theory("data=4 zero 1").state, whole / 2);
  EXPECT_DOUBLE_EQ(theory("data=4 zero 3").gradients, whole / 4);
  EXPECT_DOUBLE_EQ(theory("pipe=2,tensor=2").parameters, whole / 4);
  EXPECT_DOUBLE_EQ(theory("data=2,tensor=2 zero 1").state, whole / 2);
  EXPECT_DOUBLE_EQ(theory("context=4").parameters, whole);
  // A rank has a fourth of the experts and all other parameters.
  const LmConfig experts = divided_model(settings, true);
  const double of_experts =
      4.0 * static_cast<double>(4 * experts.num_hidden_layers * 3 * experts.hidden_size *
                                experts.intermediate_size);
  EXPECT_DOUBLE_EQ(theory("expert=4").parameters,
                   4.0 * static_cast<double>(parameter_count(experts)) - of_experts * 3 / 4);
}

TEST(ParallelismTheory, BytesActivationsAndBubble) {
  const DividedSettings settings;  // 4 layers of 128, 8 x 128 tokens
  const double whole = 4.0 * static_cast<double>(parameter_count(divided_model(settings, false)));
  const double rows = 8.0 * 128 * 128 * 4;
  const auto theory = [&](const std::string& name) {
    return theory_of(way_of(settings, name), settings);
  };
  EXPECT_DOUBLE_EQ(theory("data=4").sent, 1.5 * whole);
  EXPECT_DOUBLE_EQ(theory("data=4 zero 3").sent, 2.25 * whole);
  EXPECT_DOUBLE_EQ(theory("tensor=4").sent, 18 * 1.5 * rows);
  EXPECT_DOUBLE_EQ(theory("pipe=4").sent, 2 * rows);
  // A rank sends ten blocks of its keys and values for each layer, and the average.
  EXPECT_DOUBLE_EQ(theory("context=4").sent, 4 * 10 * 2 * rows / 4 + 1.5 * whole);
  EXPECT_DOUBLE_EQ(theory("data=4").activations, 0.25);
  EXPECT_DOUBLE_EQ(theory("context=4").activations, 0.25);
  EXPECT_DOUBLE_EQ(theory("tensor=4 rows").activations, 0.25);
  EXPECT_DOUBLE_EQ(theory("tensor=4").activations, 16.0 / 34);
  EXPECT_DOUBLE_EQ(theory("pipe=4").activations, 1.0 / 8);  // 4 of 8 micro-batches, of a fourth
  EXPECT_DOUBLE_EQ(theory("pipe=4").bubble.value(), 3.0 / 8);
  EXPECT_DOUBLE_EQ(theory("pipe=2,tensor=2").bubble.value(), 1.0 / 4);
  EXPECT_FALSE(theory("tensor=4").bubble.has_value());
}

// Every way that can run can be planned.
TEST(ParallelismTheory, EveryWayHasALayoutForThePlanner) {
  for (const int ranks : {2, 4, 8}) {
    const DividedSettings settings{.nproc = ranks};
    for (const DividedWay& way : plan_divided(settings).ways) {
      const plan::Layout layout = planned_layout(way, settings);
      const plan::ModelShape model = planned_model(way, settings);
      EXPECT_NO_THROW(plan::check(layout, model)) << way.name;
      EXPECT_EQ(layout.ranks(), ranks) << way.name;
      EXPECT_EQ(layout.global_batch, 8);
      EXPECT_EQ(model.has_experts(), way.experts);
      EXPECT_EQ(plan::parameter_count(model),
                parameter_count(divided_model(settings, way.experts)));
    }
  }
  const DividedSettings settings;
  const plan::Layout piped = planned_layout(way_of(settings, "data=2,pipe=2"), settings);
  EXPECT_EQ(piped.micro_batch, 1);
  EXPECT_EQ(piped.micro_batches(), 4);
  EXPECT_EQ(std::accumulate(piped.cut.begin(), piped.cut.end(), int64_t{0}), 4);
  EXPECT_EQ(planned_layout(way_of(settings, "data=4 zero 3"), settings).zero, 3);
}

DividedRecord record_of(double step_ms, int64_t scale = 1) {
  const int64_t mib = scale * 1024 * 1024;
  DividedRank one{.parameters = 4 * mib,
                  .gradients = 4 * mib,
                  .state = 8 * mib,
                  .activations = 2 * mib,
                  .pss = 1e6,
                  .sent = {{"pipe", 500.0}, {"data+pipe", 12.0}},
                  .step_ms = step_ms,
                  .span = 2,
                  .busy = 1};
  DividedRank other = one;
  other.parameters = 3 * mib;
  other.step_ms = step_ms / 2;
  return {.first_loss = 7.5, .last_loss = 7.25, .by_rank = {other, one}};
}

TEST(ParallelismRecord, ComesBackAsItWent) {
  const DividedRecord record = record_of(10);
  const std::string text = nlohmann::json(record).dump();
  const DividedRecord again = parse_divided_record(text, "x.json");
  EXPECT_EQ(nlohmann::json(again).dump(), text);
  EXPECT_EQ(again.by_rank[0].sent_in_all(), 512);
  EXPECT_THAT(message_of<DataError>([] { parse_divided_record("{}", "x.json"); }),
              HasSubstr("x.json: "));
  EXPECT_THAT(message_of<DataError>([] {
                parse_divided_record(R"({"first_loss": 1, "last_loss": 1, "by_rank": []})",
                                     "x.json");
              }),
              HasSubstr("x.json has no rank"));
}

TEST(ParallelismReport, TableJsonAndPage) {
  DividedComparison comparison;
  for (const char* name : {"data=4", "pipe=4", "tensor=4"}) {
    const DividedWay way = way_of({}, name);
    comparison.rows.push_back(
        {.way = way, .theory = theory_of(way, {}), .planned_bytes = 5e6, .runs = {}});
  }
  comparison.rows[0].runs = {record_of(8), record_of(10), record_of(12)};
  comparison.rows[1].runs = {record_of(20)};
  comparison.rows[2].failure = "exit code 3: <it> broke";
  comparison.left_out = {{"context=4", "too short"}};
  EXPECT_DOUBLE_EQ(comparison.rows[0].step_ms(), 10);
  EXPECT_DOUBLE_EQ(comparison.rows[0].spread(), 0.4);
  EXPECT_DOUBLE_EQ(comparison.rows[0].bubble(), 0);
  EXPECT_DOUBLE_EQ(comparison.rows[1].bubble(), 1);
  // A pipeline of 4 has an eighth of one process's activations where data has a fourth.
  EXPECT_DOUBLE_EQ(activations_in_theory(comparison, comparison.rows[1]), 1024 * 1024);
  const std::string table = divided_table(comparison);
  EXPECT_THAT(table, AllOf(HasSubstr("4.00 / "), HasSubstr("2.00 / 1.00"),
                           HasSubstr("100 % / 38 %"), HasSubstr("10.0 (40 %)"), HasSubstr("failed"),
                           HasSubstr("Left out: context=4: too short\n")));
  const auto json = to_json(comparison);
  EXPECT_EQ(json.at("ways")[0].at("runs").size(), 3u);
  EXPECT_EQ(json.at("ways")[1].at("measured").at("sent"), 512);
  EXPECT_EQ(json.at("ways")[1].at("theory").at("bubble"), 0.375);
  EXPECT_EQ(json.at("ways")[2].at("failure"), "exit code 3: <it> broke");
  EXPECT_THAT(
      divided_page(comparison),
      AllOf(HasSubstr("以各种方式划分"), HasSubstr("4 个 rank × "), HasSubstr("Memory of a rank"),
            HasSubstr("&lt;it&gt; broke"), Not(HasSubstr("<it>"))));
  EXPECT_THAT(table, Not(HasSubstr("  planned"))) << "no machine was given";
  comparison.rows[0].planned_ms = {30, 9, 10};
  comparison.rows[1].planned_ms = {21};
  EXPECT_THAT(divided_table(comparison),
              AllOf(HasSubstr("planned"), HasSubstr("10.0 (0 %)"), HasSubstr("21.0 (+5 %)")));
  EXPECT_EQ(to_json(comparison).at("ways")[0].at("theory").at("step_ms"), 10);
  EXPECT_THAT(divided_table(comparison),
              HasSubstr("The plan's choice, data=4, is the fastest measured one.\n"));
  // Planned as fast as a plan can tell, data is simpler; and it is twice as fast.
  comparison.rows[1].planned_ms = {9.9};
  EXPECT_EQ(planned_choice(comparison)->way, "data=4");
  comparison.rows[1].planned_ms = {5};
  EXPECT_EQ(planned_choice(comparison)->way, "pipe=4");
  EXPECT_DOUBLE_EQ(to_json(comparison).at("chosen").at("behind"), 1);
  EXPECT_THAT(divided_page(comparison), HasSubstr("计划选中的 pipe=4 比实测最快的方式慢 100.0 %"));
  comparison.rows[1].planned_ms = {};
  EXPECT_FALSE(planned_choice(comparison)) << "there is nothing to choose";
}

}  // namespace
}  // namespace lockstep::inline v0::engine::parallelism_test
