#include "lockstep/report/prometheus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::inline v0::prometheus_test {
namespace {

TEST(Prometheus, WritesFamiliesAsTheFormatSays) {
  using enum MetricFamily::Type;
  EXPECT_EQ(prometheus_text({{.name = "a_total",
                              .type = kCounter,
                              .help = "Calls.",
                              .samples = {{.labels = {{"rank", "0"}, {"op", "send"}}, .value = 3},
                                          {.labels = {{"rank", "0"}, {"op", "recv"}}, .value = 0}}},
                             {.name = "nothing", .help = "Without a sample."},
                             {.name = "b", .help = "A size.", .samples = {{.value = 0.1}}}}),
            "# HELP a_total Calls.\n"
            "# TYPE a_total counter\n"
            "a_total{rank=\"0\",op=\"send\"} 3\n"
            "a_total{rank=\"0\",op=\"recv\"} 0\n"
            "# HELP b A size.\n"
            "# TYPE b gauge\n"
            "b 0.1\n");
}

TEST(Prometheus, EscapesTextsAndLabels) {
  EXPECT_EQ(prometheus_text({{.name = "a",
                              .help = "one\ntwo \"three\" \\",
                              .samples = {{.labels = {{"x", "one\ntwo \"three\" \\"}}}}}}),
            "# HELP a one\\ntwo \"three\" \\\\\n"
            "# TYPE a gauge\n"
            "a{x=\"one\\ntwo \\\"three\\\" \\\\\"} 0\n");
}

TEST(Prometheus, NumbersAreExactAndReadable) {
  const auto text_of = [](double value) {
    const std::string text = prometheus_text({{.name = "a", .samples = {{.value = value}}}});
    const size_t begin = text.rfind("a ") + 2;
    return text.substr(begin, text.size() - begin - 1);
  };
  EXPECT_EQ(text_of(9007199254740991.0), "9007199254740991");
  EXPECT_EQ(text_of(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(text_of(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(text_of(std::nan("")), "NaN");
  for (const double value : {1.0 / 3, 1e-300, 1.7976931348623157e308, -2.5})
    EXPECT_EQ(std::stod(text_of(value)), value);
}

}  // namespace
}  // namespace lockstep::inline v0::prometheus_test
