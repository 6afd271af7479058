// Holds estimates against published rows and prints every one of them: predicted, published, error. The bounds are
// what is reached, and fail when an estimate gets worse.
#include "lockstep/plan/rows/published_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

namespace lockstep::inline v0::plan::published_rows_test {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

const std::vector<HeldRow>& held() {
  static const std::vector<HeldRow> rows = hold(published_rows());
  return rows;
}

bool on_fugaku(const HeldRow& one) {
  return one.row->machine == "a64fx";
}
bool has_experts(const HeldRow& one) {
  return one.row->model.has_experts();
}

template <typename Chosen>
Agreement times(const char* what, const Chosen& chosen) {
  std::vector<double> errors;
  for (const HeldRow& one : held())
    if (one.row->step > 0 && !one.row->fitted && chosen(one)) errors.push_back(one.time_error);
  const Agreement found = agreement_of(errors);
  std::printf(
      "%s: %d rows not fitted, median %.1f %%, within 5 %%: %.0f %%, 10 %%: %.0f %%, 15 %%: %.0f %%, worst %.0f %%\n",
      what, found.rows, 100 * found.median, 100 * found.within_5, 100 * found.within_10,
      100 * found.within_15, 100 * found.worst);
  return found;
}

TEST(PublishedRows, EachIsALayoutOfItsOwn) {
  std::set<std::string> labels;
  for (const PublishedRow& row : published_rows()) {
    EXPECT_NO_THROW(check(row.layout, row.model)) << row.label;
    EXPECT_GT(row.step, 0) << row.label;
    EXPECT_TRUE(labels.insert(row.source + row.label).second) << row.label;
    EXPECT_FALSE(known_stack(row.stack).source.empty()) << row.stack;
  }
}

TEST(PublishedRows, AtMostAQuarterIsFitted) {
  int fitted = 0;
  std::set<std::string> stacks;
  for (const PublishedRow& row : published_rows()) {
    fitted += row.fitted ? 1 : 0;
    stacks.insert(row.stack);
  }
  EXPECT_LE(4 * fitted, static_cast<int>(published_rows().size()));
  EXPECT_LE(stacks.size(), 17U);
}

TEST(PublishedRows, Times) {
  std::printf("%-27s %-46s %10s %10s %7s\n", "source", "row", "predicted", "published", "error");
  for (const HeldRow& one : held())
    std::printf("%-27.27s %-46.46s %9.3fs %9.3fs %+6.1f%%%s\n", one.row->source.c_str(),
                one.row->label.c_str(), one.estimate.step, one.row->step, 100 * one.time_error,
                one.row->fitted ? "  fitted" : "");
  const Agreement all = times("all", [](const HeldRow&) { return true; });
  const Agreement gpus = times("GPUs", [](const HeldRow& one) { return !on_fugaku(one); });
  const Agreement dense = times("GPUs, dense models", [](const HeldRow& one) {
    return !on_fugaku(one) && !has_experts(one);
  });
  const Agreement experts =
      times("GPUs, models with experts", [](const HeldRow& one) { return has_experts(one); });
  const Agreement fugaku = times("Fugaku", on_fugaku);
  EXPECT_LE(all.median, 0.045);
  EXPECT_GE(all.within_10, 0.75);
  EXPECT_LE(gpus.median, 0.05);
  EXPECT_GE(gpus.within_10, 0.8);
  EXPECT_LE(dense.median, 0.035);
  EXPECT_GE(dense.within_10, 0.88);
  EXPECT_LE(experts.median, 0.2);
  EXPECT_GE(fugaku.within_15, 0.4);
  EXPECT_LE(fugaku.median, 0.18);
}

TEST(PublishedRows, Memory) {
  std::vector<double> errors, one_way;
  for (const HeldRow& one : held()) {
    if (one.row->memory <= 0) continue;
    std::printf("%-27.27s %-46.46s %7.2f GiB %7.2f GiB %+6.1f%%%s\n", one.row->source.c_str(),
                one.row->label.c_str(), one.estimate.memory.of_worst().total() / kGiB,
                one.row->memory / kGiB, 100 * one.memory_error,
                one.row->memory_fitted ? "  fitted" : "");
    if (one.row->memory_fitted) continue;
    errors.push_back(one.memory_error);
    // Torchtitan's rows without tensor and pipe: nothing is assumed of them.
    if (!on_fugaku(one) && one.row->layout.tensor == 1) one_way.push_back(one.memory_error);
  }
  const Agreement all = agreement_of(errors), fsdp = agreement_of(one_way);
  std::printf(
      "memory: %d rows not fitted, median %.1f %%, within 5 %%: %.0f %%, 10 %%: %.0f %%, worst %.0f %%\n",
      all.rows, 100 * all.median, 100 * all.within_5, 100 * all.within_10, 100 * all.worst);
  EXPECT_LE(fsdp.worst, 0.05);
  EXPECT_GE(all.within_10, 0.5);
  EXPECT_LE(all.median, 0.08);
}

TEST(PublishedRows, OrderOfLayouts) {
  const Order order = order_of(held());
  std::printf("order: %d of %d pairs that differ by more than 5 %%\n", order.right, order.pairs);
  EXPECT_GE(order.pairs, 150);
  EXPECT_GE(order.right, 0.9 * order.pairs);
}

TEST(PublishedRows, AgreementIsCounted) {
  const Agreement found = agreement_of({-0.01, 0.04, 0.2, -0.12});
  EXPECT_EQ(found.rows, 4);
  EXPECT_DOUBLE_EQ(found.median, 0.08);
  EXPECT_DOUBLE_EQ(found.worst, 0.2);
  EXPECT_DOUBLE_EQ(found.within_5, 0.5);
  EXPECT_DOUBLE_EQ(found.within_15, 0.75);
  EXPECT_EQ(agreement_of({}).rows, 0);
}

}  // namespace
}  // namespace lockstep::inline v0::plan::published_rows_test
