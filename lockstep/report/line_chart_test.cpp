#include "lockstep/report/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::line_chart_test {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LineChart, DrawsPanelsSeriesAndLegend) {
  ChartPanel time{.title = "time <s>", .x_label = "ranks", .y_label = "seconds", .series = {}};
  time.series = {{"measured", {1, 2, 3}, {10, 6, std::nan("")}},
                 {"ideal & linear", {1, 2, 3}, {10, 5, 3.33}, true}};
  const std::string svg = svg_line_chart({time, {}}, {.title = "Scaling"});
  EXPECT_THAT(svg, HasSubstr("time &lt;s&gt;"));
  EXPECT_THAT(svg, HasSubstr("ideal &amp; linear"));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(svg, HasSubstr("Scaling"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(LineChart, ManyLinesHaveTheirLegendBelowAndDotsWhereColoursRepeat) {
  ChartPanel panel;
  for (int i = 0; i < 4; ++i) panel.series.push_back({"line " + std::to_string(i), {1, 2}, {1, 2}});
  const std::string four = svg_line_chart({panel});
  EXPECT_THAT(four, HasSubstr("height=\"340\""));
  for (int i = 4; i < 9; ++i) panel.series.push_back({"line " + std::to_string(i), {1, 2}, {1, 2}});
  const std::string nine = svg_line_chart({panel});
  EXPECT_THAT(nine, Not(HasSubstr("height=\"340\"")));
  EXPECT_THAT(nine, HasSubstr("line 8"));
  EXPECT_THAT(four, Not(HasSubstr("stroke-dasharray")));
  EXPECT_THAT(nine, HasSubstr("stroke-dasharray=\"2 3\""));
}

std::vector<double> circles(const std::string& svg) {
  std::vector<double> centres;
  const std::string before = "<circle cx=\"";
  for (size_t at = 0; (at = svg.find(before, at)) != std::string::npos; ++at)
    centres.push_back(std::stod(svg.substr(at + before.size())));
  return centres;
}

// The report of a run of one epoch.
TEST(LineChart, ASinglePointIsDrawnAndPanelsMayShareTheirXAxis) {
  const ChartPanel loss{
      .title = "Loss",
      .x_label = "step",
      .y_label = "",
      .series = {{"training", {10, 20, 30}, {3, 2, 1}}, {"test", {32}, {1}, true}},
      .x_integers = true};
  const ChartPanel accuracy{.title = "Accuracy",
                            .x_label = "step",
                            .y_label = "",
                            .series = {{"test", {32}, {90}}},
                            .y_from_zero = false,
                            .x_integers = true};
  const std::vector<double> marks =
      circles(svg_line_chart({loss, accuracy}, {.title = "", .panel_width = 460, .same_x = true}));
  ASSERT_EQ(marks.size(), 5u) << "three of training, one of the test in each panel";
  EXPECT_LT(marks[2], marks[3]) << "step 32 is right of step 30";
  EXPECT_DOUBLE_EQ(marks[4], marks[3] + 460) << "at the same place in both panels";
}

TEST(LineChart, RefusesUnevenSeries) {
  ChartPanel panel;
  panel.series = {{"a", {1, 2}, {1}}};
  EXPECT_THROW(svg_line_chart({panel}), InvalidArgument);
}

}  // namespace lockstep::line_chart_test
