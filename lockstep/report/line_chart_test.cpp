#include "lockstep/report/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::line_chart_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AxisTicks, AreRoundAndCover) {
  EXPECT_THAT(axis_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(1, 4, 6, true), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(axis_ticks(3, 3, 6, true), ElementsAre(2, 3, 4));
  for (const double high : {1e-7, 0.3, 1.0, 17.0, 123456.0}) {
    const auto ticks = axis_ticks(-high / 3, high, 6);
    EXPECT_LE(ticks.front(), -high / 3);
    EXPECT_GE(ticks.back(), high * (1 - 1e-9));
    EXPECT_LE(ticks.size(), 10u);
  }
}

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

TEST(LineChart, RefusesUnevenSeries) {
  ChartPanel panel;
  panel.series = {{"a", {1, 2}, {1}}};
  EXPECT_THROW(svg_line_chart({panel}), InvalidArgument);
}

}  // namespace lockstep::line_chart_test
