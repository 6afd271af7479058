// Calibration: figures that are known come out of samples that they explain; files.
#include "lockstep/plan/calibration/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/plan/estimate/estimate.h"
#include "lockstep/plan/machine/late_rank.h"

namespace lockstep::inline v0::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<ProductSample> samples(Precision precision, double peak, double half) {
  std::vector<ProductSample> all;
  for (const int64_t size : {128, 256, 512, 1024, 2048}) {
    const auto n = static_cast<double>(size);
    const double flops = peak * std::pow(n / (n + half), 3);
    all.push_back({.precision = precision, .size = size, .seconds = 2 * n * n * n / flops});
  }
  return all;
}

TEST(Calibration, FindsThePeakAndWhereHalfOfItIsReached) {
  auto all = samples(Precision::kFloat32, 1e11, 40);
  const auto narrow = samples(Precision::kBFloat16, 4e11, 0);
  all.insert(all.end(), narrow.begin(), narrow.end());
  const ProductFit wide = fit_products(all, Precision::kFloat32);
  EXPECT_NEAR(wide.peak, 1e11, 1e9);
  EXPECT_NEAR(wide.half, 40, 1.5);
  EXPECT_LT(wide.error, 0.01);
  EXPECT_NEAR(fit_products(all, Precision::kBFloat16).peak, 4e11, 1);
  EXPECT_EQ(fit_products(all, Precision::kBFloat16).half, 0);
  EXPECT_EQ(fit_products(all, Precision::kFloat8).peak, 0) << "nothing was measured";
  all[2].seconds *= 1.3;  // a disturbance
  EXPECT_GT(fit_products(all, Precision::kFloat32).error, 0.1);
}

// The time that the planner computes with the link is the sample's.
TEST(Calibration, ALinkExplainsItsCollectives) {
  const Link link{.latency = 5e-6, .bandwidth = 8e9};
  std::vector<CollectiveSample> all;
  for (const int ranks : {2, 4}) {
    const double share = (ranks - 1.0) / ranks;
    all.push_back({Collective::kAllReduce, ranks, 2 * (ranks - 1) * link.latency,
                   2 * share / link.bandwidth});
    all.push_back(
        {Collective::kAllGather, ranks, (ranks - 1) * link.latency, share / link.bandwidth});
  }
  all.push_back({Collective::kSend, 2, link.latency, 1 / link.bandwidth});
  const Link found = fit_link(all);
  EXPECT_NEAR(found.latency, link.latency, 1e-12);
  EXPECT_NEAR(found.bandwidth, link.bandwidth, 1);
  Machine machine = known_machine("xeon-8480");
  machine.inside = found;
  const double bytes = 64e6;
  EXPECT_NEAR(collective_time(Collective::kAllReduce, bytes, {.ranks = 2, .per_host = 2}, machine),
              all[0].alpha + all[0].beta * bytes, 1e-9);
}

Measurements measured() {
  Measurements all{.name = "here", .ranks = 2};
  all.products = samples(Precision::kFloat32, 1e11, 40);
  all.copied = 1e10;
  all.launch = 2e-6;
  all.attention_flops = 3e10;
  all.memory = 8e9;
  all.fixed_bytes = 2e8;
  all.inside = {{Collective::kAllReduce, 2, 1e-5, 1e-10}};
  all.between = {{Collective::kAllReduce, 2, 4e-5, 5e-10}};
  all.between_over = "tcp";
  return all;
}

TEST(Calibration, AMachineAndItsStackSurviveTheirFile) {
  const Calibration here = calibration_of(measured());
  EXPECT_EQ(here.machine.ranks_per_host, 2);
  EXPECT_NEAR(here.machine.float32, 1e11, 1e9);
  EXPECT_EQ(here.machine.bfloat16, 0);
  EXPECT_NEAR(here.machine.inside.bandwidth, 1e10, 1);
  EXPECT_NEAR(here.machine.between.bandwidth, 2e9, 1);
  ASSERT_TRUE(here.stack.has_value());
  EXPECT_EQ(here.stack->matrix, 1);
  EXPECT_NEAR(here.stack->attention, 0.3, 0.01);
  EXPECT_EQ(here.stack->overlap, 0);
  const TestDirectory folder;
  const std::string file = folder.write("machine.json", to_json(here));
  const Calibration again = find_calibration(file);
  EXPECT_EQ(to_json(again), to_json(here));
  EXPECT_EQ(again.machine, here.machine);
  EXPECT_EQ(again.stack, here.stack);
  folder.write("machine.json", to_json(here.machine));
  EXPECT_FALSE(find_calibration(file).stack.has_value()) << "a machine alone";
  EXPECT_EQ(find_calibration("h100").machine, known_machine("h100"));
}

// What was measured is what is estimated.
TEST(Calibration, PartsThatWereMeasuredAreTheEstimate) {
  ModelShape model;
  model.layers = 3;
  model.hidden = 128;
  model.heads = 4;
  model.ffn = 512;
  model.vocab = 2048;
  Measurements all = measured();
  all.parts = {{.model = model,
                .batch = 4,
                .sequence = 128,
                .layer_forward = 0.003,
                .layer_backward = 0.007,
                .ends_forward = 0.002,
                .ends_backward = 0.005,
                .update = 0.001}};
  const Calibration here = calibration_of(all);
  ASSERT_TRUE(here.stack.has_value());
  EXPECT_EQ(here.stack->measured.size(), 3U);
  EXPECT_EQ(to_json(calibration_from_json(to_json(here), "m.json")), to_json(here));
  Layout layout{.micro_batch = 4, .global_batch = 4, .sequence = 128};
  layout.precision = Precision::kFloat32;
  layout.masters = false;
  const Estimate found = estimate(model, layout, here.machine, *here.stack);
  EXPECT_NEAR(found.step, 3 * 0.010 + 0.007 + 0.001, 1e-9);
  layout.global_batch = 16;  // four micro-batches
  EXPECT_NEAR(estimate(model, layout, here.machine, *here.stack).step,
              4 * (3 * 0.010 + 0.007) + 0.001, 1e-9);
}

// Ranks that are more than processors: what waits in a pipeline leaves its processor to others.
TEST(Calibration, ABubbleCostsLittleWhereOtherRanksComputeMeanwhile) {
  ModelShape model;
  model.layers = 4;
  model.hidden = 128;
  model.heads = 4;
  model.ffn = 512;
  model.vocab = 2048;
  Measurements all = measured();
  all.ranks = 4;
  Layout layout{.pipe = 4, .micro_batch = 1, .global_batch = 8, .sequence = 128};
  layout.precision = Precision::kFloat32;
  layout.masters = false;
  const auto bubble = [&](int processors) {
    all.processors = processors;
    const Calibration here = calibration_of(all);
    const Estimate found = estimate(model, layout, here.machine, *here.stack);
    EXPECT_NEAR(found.time.total(), found.step, 1e-12);
    return found.bubble;
  };
  EXPECT_GT(bubble(4), 0.15);
  // The first stage computes, and the last, while no other can.
  EXPECT_GT(bubble(2), 0.05);
  EXPECT_LT(bubble(2), 0.1);
  EXPECT_NEAR(bubble(1), 0, 1e-6);
}

TEST(Calibration, FindsByHowMuchRanksAreApart) {
  Measurements all = measured();
  for (const double step : {0.01, 0.04, 0.09}) {
    PartSample sample;
    sample.model = {};
    sample.model.layers = 1;
    sample.model.hidden = 64;
    sample.model.heads = 4;
    sample.model.ffn = 256;
    sample.model.vocab = 512;
    sample.step = step;
    sample.late = late_time(0.02, step, 1, all.ranks);
    all.parts.push_back(sample);
  }
  EXPECT_NEAR(calibration_of(all).stack->jitter, 0.02, 1e-9);
  all.parts[1].late *= 10;  // a disturbance
  EXPECT_NEAR(calibration_of(all).stack->jitter, 0.02, 1e-9);
}

TEST(Calibration, MoreRanksShareMemoryAndProcessorsOnceTheseAreFewer) {
  Measurements all = measured();
  all.ranks = 2;
  all.processors = 4;
  const Calibration two = calibration_of(all);
  EXPECT_EQ(two.machine.processors, 4);
  const Machine four = with_ranks(two, 4).machine, eight = with_ranks(two, 8).machine;
  EXPECT_DOUBLE_EQ(four.float32, two.machine.float32);
  EXPECT_DOUBLE_EQ(eight.float32, two.machine.float32 / 2);
  EXPECT_DOUBLE_EQ(with_ranks({.machine = eight, .stack = {}}, 2).machine.float32,
                   two.machine.float32);
  EXPECT_DOUBLE_EQ(four.memory, two.machine.memory / 2);
  EXPECT_DOUBLE_EQ(eight.memory_bandwidth, two.machine.memory_bandwidth / 4);
  EXPECT_EQ(eight.ranks_per_host, 8);
  EXPECT_EQ(eight.processors, 4);
}

TEST(Calibration, WithoutAnotherHostLinksBetweenAreAsInside) {
  Measurements alone = measured();
  alone.between.clear();
  const Machine machine = calibration_of(alone).machine;
  EXPECT_EQ(machine.between, machine.inside);
}

TEST(Calibration, MistakesAreOneLine) {
  const auto refusal = [](void (*change)(Measurements&)) {
    Measurements all = measured();
    change(all);
    return message_of<InvalidArgument>([&] { calibration_of(all); });
  };
  EXPECT_THAT(refusal([](Measurements& m) { m.products.clear(); }),
              HasSubstr("no product in float32"));
  EXPECT_THAT(refusal([](Measurements& m) { m.copied = 0; }), HasSubstr("no copy"));
  EXPECT_THAT(refusal([](Measurements& m) { m.inside.clear(); }), HasSubstr("no collective"));
  const auto of_file = [](const std::string& text) {
    return message_of<InvalidArgument>([&] { calibration_from_json(text, "m.json"); });
  };
  EXPECT_THAT(of_file("{"), StartsWith("m.json"));
  EXPECT_THAT(of_file("{\"stack\": 3}"), StartsWith("m.json"));
  EXPECT_THAT(of_file("[]"), StartsWith("m.json"));
  EXPECT_THAT(message_of<InvalidArgument>([] { find_calibration("none.json"); }),
              HasSubstr("none.json"));
  EXPECT_THAT(of_file(R"({"stack": {"measured": [{"part": "head"}]}})"),
              HasSubstr("measured[0].part is \"head\"; give layer, ends or update"));
  EXPECT_THAT(message_of<InvalidArgument>([] { find_calibration("h101"); }),
              HasSubstr("did you mean h100"));
}

}  // namespace
}  // namespace lockstep::inline v0::plan
