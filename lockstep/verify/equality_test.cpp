#include "lockstep/verify/equality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/verify/equality_matrix.h"

namespace lockstep::inline v0 {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// So that an optimizer's state takes part in two of them; lockstep verify --matrix takes 20.
constexpr int64_t kSteps = 3;

std::vector<EqualityCell> matrix_of(const std::vector<EqualityModel>& models,
                                    const std::vector<EqualityProduct>& products,
                                    const MatrixOptions& options) {
  std::vector<EqualityCell> cells;
  for (const EqualityModel& model : models) {
    const EqualityRun expected = train_whole(model, options.training);
    for (const EqualityProduct& product : products)
      cells.push_back(compare_product(model, expected, product, options));
  }
  return cells;
}

// All there is, in float64.
TEST(EqualityMatrix, EveryProductIsOneProcess) {
  size_t compared = 0;
  const auto cells =
      matrix_of(equality_models(), equality_products(), {.training = {.steps = kSteps}});
  for (const EqualityCell& cell : cells) {
    if (!cell.refused.empty()) {
      EXPECT_THAT(cell.refused,
                  AnyOf(HasSubstr("do not go together"), HasSubstr("the model has no experts")));
      continue;
    }
    ++compared;
    EXPECT_TRUE(cell.holds(default_tolerance(at::kDouble)))
        << cell.model << ", " << to_string(cell.product) << ": " << cell.result.most() << " at "
        << cell.result.worst;
    // It trained: nothing is equal by having stood still.
    EXPECT_GT(cell.result.most(), 0) << to_string(cell.product);
  }
  EXPECT_GT(compared, cells.size() * 3 / 4);
}

TEST(EqualityMatrix, TrainingMovesWhatIsCompared) {
  const EqualityModel& model = equality_models().front();
  const EqualityRun none = train_whole(model, {.steps = 0}), all = train_whole(model);
  EXPECT_LT(all.losses.back(), all.losses.front());
  for (const auto& [name, value] : none.parameters)
    EXPECT_GT((all.parameters.at(name) - value).abs().max().item<double>(), 1e-4) << name;
}

// A parameter that is a millionth off is found by its name.
TEST(EqualityMatrix, ADifferenceIsNamed) {
  const EqualityModel& model = equality_models().front();
  const EqualityRun one = train_whole(model, {.steps = 2});
  EqualityRun other = train_whole(model, {.steps = 2});
  EXPECT_TRUE(same_bits(one, other));
  EXPECT_EQ(compare(other, one).most(), 0);
  other.parameters["model.layers.3.mlp.up_proj.weight"][1][2] *= 1.001;
  EXPECT_FALSE(same_bits(one, other));
  EXPECT_EQ(compare(other, one).worst, "model.layers.3.mlp.up_proj.weight");
  EXPECT_GT(compare(other, one).parameters, 1e-6);
  other.parameters.erase("model.norm.weight");
  EXPECT_EQ(compare(other, one).worst, "model.norm.weight");
}

// In float32, by the fused nodes: near one process, and the same bits every time.
TEST(EqualityMatrix, InFloat32ItRepeatsBitForBit) {
  Parallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
  how.zero = 1;
  how.schedule = "zb-h1";
  how.divides_rows = true;
  const auto cells = matrix_of(
      {equality_models().front()}, {{how, 8}},
      {.training = {.steps = kSteps, .dtype = at::kFloat, .adam = false}, .repeat = true});
  EXPECT_TRUE(*cells[0].repeats);
  EXPECT_TRUE(cells[0].holds(default_tolerance(at::kFloat))) << cells[0].result.most();
}

}  // namespace
}  // namespace lockstep::inline v0
