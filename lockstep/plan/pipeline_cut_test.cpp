#include "lockstep/plan/pipeline_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pipeline_cut_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double dearest(const std::vector<double>& costs, const std::vector<int>& cut) {
  double most = 0;
  size_t next = 0;
  for (const int count : cut) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += costs[next++];
    most = std::max(most, sum);
  }
  return most;
}

// By trying every cut.
double least_of_all(const std::vector<double>& costs, size_t begin, int chunks) {
  if (chunks == 1) {
    double sum = 0;
    for (size_t i = begin; i < costs.size(); ++i) sum += costs[i];
    return sum;
  }
  double best = 1e300, sum = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(chunks) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, least_of_all(costs, end, chunks - 1)));
  }
  return best;
}

double squares_of(const std::vector<double>& costs, const std::vector<int>& cut) {
  double all = 0;
  size_t next = 0;
  for (const int count : cut) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += costs[next++];
    all += sum * sum;
  }
  return all;
}

// By trying every cut: the least sum of squares of those whose chunks cost at most `most`.
double least_squares(const std::vector<double>& costs, size_t begin, int chunks, double most) {
  double best = 1e300, sum = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(chunks) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    if (sum > most || (chunks == 1 && end < costs.size())) continue;
    best =
        std::min(best, sum * sum + (chunks == 1 ? 0 : least_squares(costs, end, chunks - 1, most)));
  }
  return best;
}

// Where one unit is dearer than all the others together, those are divided evenly, and no chunk is left over with what
// costs nothing.
TEST(PipelineCut, ChunksBesideTheDearestAreAlike) {
  // Embeddings, four layers, the last norm, the head.
  EXPECT_THAT(cut_by_costs(std::vector<double>{0, 1, 1, 1, 1, 0, 9}, 4), ElementsAre(3, 1, 2, 1));
  EXPECT_THAT(cut_by_costs(std::vector<double>{9, 1, 1, 1, 1, 1, 1}, 4), ElementsAre(1, 2, 2, 2));
  EXPECT_THAT(cut_by_costs(std::vector<double>{1, 1, 1, 1, 1, 1, 1}, 3), ElementsAre(3, 2, 2));
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) cost = static_cast<double>(random() % 5);
    const int chunks = 1 + static_cast<int>(random() % costs.size());
    const std::vector<int> cut = cut_by_costs(costs, chunks);
    EXPECT_EQ(squares_of(costs, cut), least_squares(costs, 0, chunks, dearest(costs, cut)));
  }
  // Costs whose sums are rounded.
  std::vector<double> thirds(24, 1.0 / 3);
  thirds.insert(thirds.begin(), 0.1);
  EXPECT_THAT(cut_by_costs(thirds, 4), ElementsAre(7, 6, 6, 6));
}

TEST(PipelineCut, ByCosts) {
  EXPECT_THAT(cut_by_costs(std::vector<double>{1, 1, 1, 1, 1, 1}, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(cut_by_costs(std::vector<double>{1, 1, 1, 1, 1}, 2), ElementsAre(3, 2));
  EXPECT_THAT(cut_by_costs(std::vector<double>{9, 1, 1, 1, 1, 9}, 3), ElementsAre(1, 4, 1));
  EXPECT_THAT(cut_by_costs(std::vector<double>{0, 0, 0}, 2), ElementsAre(2, 1));
  EXPECT_THAT(cut_by_costs(std::vector<double>{5}, 1), ElementsAre(1));
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) cost = static_cast<double>(random() % 12);
    const int chunks = 1 + static_cast<int>(random() % costs.size());
    const std::vector<int> cut = cut_by_costs(costs, chunks);
    ASSERT_EQ(static_cast<int>(cut.size()), chunks);
    EXPECT_GT(*std::min_element(cut.begin(), cut.end()), 0);
    EXPECT_EQ(first_units(cut).back(), static_cast<int>(costs.size()));
    EXPECT_DOUBLE_EQ(dearest(costs, cut), least_of_all(costs, 0, chunks));
  }
}

TEST(PipelineCut, ByNamesAndCounts) {
  const std::vector<std::string> units{"embed", "layer0", "layer1", "layer2", "head"};
  EXPECT_THAT(cut_by_names(units, {"layer1", "head"}), ElementsAre(2, 2, 1));
  EXPECT_THAT(cut_by_names(units, {}), ElementsAre(5));
  EXPECT_THAT(cut_by_counts(5, {1, 3, 1}), ElementsAre(1, 3, 1));
  EXPECT_THAT(first_units({1, 3, 1}), ElementsAre(0, 1, 4, 5));
}

TEST(PipelineCut, MistakesAreOneLine) {
  const std::vector<std::string> units{"embed", "layer0", "layer1", "head"};
  const auto of_names = [&](const std::vector<std::string>& first) {
    return message_of<InvalidArgument>([&] { cut_by_names(units, first); });
  };
  EXPECT_EQ(of_names({"layer7"}),
            "pipeline cut: the model has no unit 'layer7' (did you mean layer0?); its units are "
            "embed, layer0, layer1, head");
  EXPECT_THAT(of_names({"embed"}), HasSubstr("'embed' does not stand behind"));
  EXPECT_THAT(of_names({"layer1", "layer0"}), HasSubstr("in the model's order"));
  EXPECT_EQ(message_of<InvalidArgument>([] { cut_by_counts(4, {1, 2}); }),
            "pipeline cut 1, 2: 4 units; give how many each chunk has, at least 1");
  EXPECT_THAT(message_of<InvalidArgument>([] { cut_by_counts(4, {4, 0}); }),
              HasSubstr("at least 1"));
  EXPECT_THAT(message_of<InvalidArgument>([] { cut_by_costs(std::vector<double>{1, 2}, 3); }),
              HasSubstr("2 units do not make 3 chunks"));
  EXPECT_THAT(message_of<InvalidArgument>([] { cut_by_costs(std::vector<double>{1, -2}, 2); }),
              HasSubstr("not negative"));
}

}  // namespace
}  // namespace lockstep::inline v0::pipeline_cut_test
