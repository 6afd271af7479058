#include "lockstep/report/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0::line_chart_test {

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
  const auto add = [&panel](int i) {
    panel.series.push_back({"line " + std::to_string(i), {1, 2}, {1, 2.0 - 0.1 * i}});
  };
  for (int i = 0; i < 4; ++i) add(i);
  const std::string four = svg_line_chart({panel});
  EXPECT_THAT(four, HasSubstr("height=\"340\""));
  for (int i = 4; i < 9; ++i) add(i);
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

TEST(LineChart, LinesThatCoincideTakeTurns) {
  std::vector<double> steps, losses, others;
  for (int i = 0; i < 100; ++i) {
    steps.push_back(i);
    losses.push_back(100 - i);
    others.push_back(50 + 0.1 * i);
  }
  ChartPanel panel;
  panel.series = {{"ddp", steps, losses}, {"other", steps, others}, {"zero1", steps, losses}};
  const std::string svg = svg_line_chart({panel});
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray=\"10 10\" stroke-dashoffset=\"0\""));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray=\"10 10\" stroke-dashoffset=\"10\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#D55E00\" stroke-width=\"2\" points="))
      << "the other line is whole";
  // The marks of a few points are rings around each other.
  panel.series = {{"a", {1, 2}, {3, 4}}, {"b", {1, 2}, {3, 4}}};
  const std::string rings = svg_line_chart({panel});
  EXPECT_THAT(rings, HasSubstr("r=\"4.5\" fill=\"#0072B2\""));
  EXPECT_THAT(rings, HasSubstr("r=\"3\" fill=\"#D55E00\""));
}

TEST(LineChart, NoAxisGoesBeyondWhatCanBe) {
  const auto axis_of = [](const std::vector<double>& values) {
    ChartPanel panel{.title = "",
                     .x_label = "",
                     .y_label = "%",
                     .series = {{"accuracy", {}, values}},
                     .y_from_zero = false,
                     .y_most = 100};
    for (size_t i = 0; i < values.size(); ++i) panel.series[0].x.push_back(static_cast<double>(i));
    return svg_line_chart({panel});
  };
  for (const std::vector<double>& values :
       {std::vector<double>{100}, {99.9}, {97, 99.5}, {100, 100}, {10, 100}, {98.7, 100}}) {
    const std::string svg = axis_of(values);
    for (const char* beyond : {">100.5<", ">101<", ">102<", ">105<", ">110<", ">120<"})
      EXPECT_THAT(svg, Not(HasSubstr(beyond))) << values[0];
  }
  EXPECT_THAT(axis_of({100}), HasSubstr(">100<"));
}

// The legend of two lines along the upper edge stands in a lower corner; if lines are in every
// corner, it stands below the panel.
TEST(LineChart, TheLegendIsWhereNoLineIs) {
  const std::vector<double> x{1, 2};
  ChartPanel panel;
  panel.series = {{"a long name of a line", x, {10, 10}}, {"another long name", x, {9.5, 9.5}}};
  const std::string above = svg_line_chart({panel});
  EXPECT_THAT(above, HasSubstr("height=\"340\""));
  EXPECT_THAT(above, HasSubstr("<g transform=\"translate(80 248)\">"));
  panel.series = {{"a long name of a line", x, {10, 10}}, {"another long name", x, {0.5, 0.5}}};
  const std::string both = svg_line_chart({panel});
  EXPECT_THAT(both, HasSubstr("height=\"358\""));
  EXPECT_THAT(both, HasSubstr("<g transform=\"translate(12 340)\">"));
}

TEST(LineChart, TicksMayHaveWords) {
  ChartPanel panel{.title = "", .x_label = "", .y_label = "", .series = {{"a", {0, 2}, {1, 2}}}};
  panel.x_tick = [](double at) { return std::to_string(1 << static_cast<int>(at)) + " B"; };
  panel.x_integers = true;
  EXPECT_THAT(svg_line_chart({panel}), HasSubstr(">4 B</text>"));
}

// "1024 MiB" at the end of the axis is not cut off at the picture's edge.
TEST(LineChart, TheLastTickHasRoomForItsText) {
  ChartPanel panel{.title = {}, .x_label = {}, .y_label = {}, .series = {{"a", {0, 1}, {0, 1}}}};
  EXPECT_THAT(svg_line_chart({panel}), HasSubstr("<line x1=\"440\" y1=\"288\" x2=\"440\""));
  panel.x_tick = [](double) { return std::string("1024 MiB"); };
  EXPECT_THAT(svg_line_chart({panel}), HasSubstr("<line x1=\"429.2\" y1=\"288\" x2=\"429.2\""));
}

TEST(LineChart, ALineMayHaveAnotherPanelsColour) {
  ChartPanel panel;
  panel.series = {{"a", {0, 1}, {0, 1}}, {.name = "b", .x = {0, 1}, .y = {1, 3}, .colour = 3}};
  const std::string svg = svg_line_chart({panel});
  EXPECT_THAT(svg, HasSubstr(series_colour(3)));
  EXPECT_THAT(svg, Not(HasSubstr(series_colour(1))));
}

TEST(LineChart, RefusesUnevenSeries) {
  ChartPanel panel;
  panel.series = {{"a", {1, 2}, {1}}};
  EXPECT_THROW(svg_line_chart({panel}), InvalidArgument);
}

}  // namespace lockstep::inline v0::line_chart_test
