#include "lockstep/report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/bar_chart.h"

namespace lockstep::inline v0::svg_test {

using ::testing::AllOf;
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

TEST(Svg, MarkupInTextsIsShownNotObeyed) {
  EXPECT_EQ(escaped_markup("<a href=\"x\">&\x01情"), "&lt;a href=&quot;x&quot;&gt;&amp;?情");
  EXPECT_THAT(svg_text(1, 2.5, Anchor::kEnd, "a<b"),
              "<text x=\"1\" y=\"2.5\" text-anchor=\"end\">a&lt;b</text>\n");
}

TEST(Svg, ALegendBreaksItsLines) {
  const std::vector<LegendEntry> entries(5, {"a name of some length", ""});
  const Legend one = svg_legend(entries, 0, 0, 10000), many = svg_legend(entries, 0, 0, 200);
  EXPECT_EQ(many.height, 5 * one.height);
  EXPECT_EQ(svg_legend({}, 0, 0, 100).height, 0);
}

BarChart two_bars() {
  return {.title = "Where <time> goes",
          .x_label = "ms",
          .parts = {"forward", "backward"},
          .bars = {{"single", {1, 3}, "4 ms"}, {"failed", {-1, 0.0 / 0.0}, "no <result>"}}};
}

TEST(BarChart, DrawsPartsLegendAndNotes) {
  const std::string svg = svg_bar_chart(two_bars());
  EXPECT_THAT(svg, AllOf(HasSubstr("Where &lt;time&gt; goes"), HasSubstr(">forward<"),
                         HasSubstr(">4 ms<"), HasSubstr("no &lt;result&gt;"), HasSubstr("</svg>")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("width=\"-"))));
  BarChart plain = two_bars();
  plain.parts = {"time"};
  plain.bars = {{"single", {2}, ""}};
  EXPECT_THAT(svg_bar_chart(plain), Not(HasSubstr(">time<"))) << "one part needs no legend";
  plain.bars.clear();
  EXPECT_THAT(svg_bar_chart(plain), HasSubstr("</svg>"));
}

TEST(BarChart, APartMayHaveItsOwnColourAndAnAxisItsOwnWords) {
  BarChart chart = two_bars();
  chart.colours = {part_colour("forward"), part_colour("backward")};
  chart.tick = [](double at) { return "<" + std::to_string(static_cast<int>(at)) + ">"; };
  const std::string svg = svg_bar_chart(chart);
  for (const size_t colour : chart.colours)
    EXPECT_THAT(svg, HasSubstr(std::string("fill=\"") + series_colour(colour)));
  EXPECT_THAT(svg, HasSubstr(">&lt;2&gt;</text>"));
  chart.colours.pop_back();
  EXPECT_THAT(message_of<InvalidArgument>([&] { svg_bar_chart(chart); }),
              HasSubstr("1 colours for 2 parts"));
}

TEST(PartColour, DiffersWithinAWhole) {
  for (const auto& whole :
       {std::vector<const char*>{"data", "forward", "backward", "averaging", "wait", "optimizer"},
        {"parameters", "gradients", "optimizer", "buffers", "average", "activations",
         "temporaries"}}) {
    std::set<size_t> colours;
    for (const char* part : whole) colours.insert(part_colour(part));
    EXPECT_EQ(colours.size(), whole.size());
  }
  EXPECT_EQ(part_colour("wait"), part_colour("waiting"));
}

TEST(ByteUnit, IsOneThatPeopleCanRead) {
  EXPECT_STREQ(byte_unit(0).name, "B");
  EXPECT_STREQ(byte_unit(1023).name, "B");
  EXPECT_STREQ(byte_unit(1024).name, "KiB");
  EXPECT_STREQ(byte_unit(5e9).name, "GiB");
  EXPECT_EQ(byte_unit(5 << 20).bytes, 1 << 20);
}

TEST(BarChart, RefusesAnotherNumberOfParts) {
  BarChart chart = two_bars();
  chart.bars[1].parts.pop_back();
  EXPECT_THAT(message_of<InvalidArgument>([&] { svg_bar_chart(chart); }),
              HasSubstr("bar 'failed' has 1 parts for 2 names"));
}

}  // namespace lockstep::inline v0::svg_test
