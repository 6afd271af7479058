#include "lockstep/plan/rows/published_rows.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/quantile.h"
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan {

const std::vector<PublishedRow>& published_rows() {
  static const std::vector<PublishedRow> all = [] {
    std::vector<PublishedRow> rows;
    for (const auto& group :
         {internal::megatron_rows(), internal::nvidia_rows(), internal::foundry_rows(),
          internal::titan_rows(), internal::fugaku_rows()})
      rows.insert(rows.end(), group.begin(), group.end());
    return rows;
  }();
  return all;
}

std::vector<HeldRow> hold(const std::vector<PublishedRow>& rows) {
  std::vector<HeldRow> held;
  for (const PublishedRow& row : rows) {
    HeldRow one{.row = &row};
    one.estimate =
        estimate(row.model, row.layout, known_machine(row.machine), known_stack(row.stack));
    if (row.step > 0) one.time_error = one.estimate.step / row.step - 1;
    if (row.memory > 0) one.memory_error = one.estimate.memory.of_worst().total() / row.memory - 1;
    held.push_back(one);
  }
  return held;
}

Agreement agreement_of(std::vector<double> errors) {
  Agreement found{.rows = static_cast<int>(errors.size())};
  if (errors.empty()) return found;
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  found.median = median(errors);
  found.worst = errors.back();
  const auto within = [&](double most) {
    const auto end = std::upper_bound(errors.begin(), errors.end(), most);
    return static_cast<double>(end - errors.begin()) / static_cast<double>(errors.size());
  };
  found.within_5 = within(0.05);
  found.within_10 = within(0.1);
  found.within_15 = within(0.15);
  return found;
}

Order order_of(const std::vector<HeldRow>& rows) {
  Order order;
  const auto published = [](const HeldRow& one) {
    const Layout& layout = one.row->layout;
    return static_cast<double>(layout.global_batch * layout.sequence) / one.row->step /
           static_cast<double>(layout.ranks());
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = i + 1; j < rows.size(); ++j) {
      const PublishedRow &a = *rows[i].row, &b = *rows[j].row;
      if (a.step <= 0 || b.step <= 0 || a.source != b.source || a.machine != b.machine ||
          a.model.name != b.model.name)
        continue;
      const double first = published(rows[i]), second = published(rows[j]);
      if (std::abs(first / second - 1) <= 0.05) continue;
      ++order.pairs;
      const bool more = rows[i].estimate.tokens_per_second > rows[j].estimate.tokens_per_second;
      order.right += more == (first > second) ? 1 : 0;
    }
  }
  return order;
}

}  // namespace lockstep::inline v0::plan
