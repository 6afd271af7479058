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

TEST(LineChart, RefusesUnevenSeries) {
  ChartPanel panel;
  panel.series = {{"a", {1, 2}, {1}}};
  EXPECT_THROW(svg_line_chart({panel}), InvalidArgument);
}

}  // namespace lockstep::line_chart_test
