#include "lockstep/report/prometheus.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace lockstep::inline v0 {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\\\";
    else if (c == '\n')
      result += "\\n";
    else if (c == '"' && quotes)
      result += "\\\"";
    else
      result += c;
  }
  return result;
}

// As Go's ParseFloat reads it, with the digits that tell it from every other number.
std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

std::string prometheus_text(const std::vector<MetricFamily>& families) {
  std::string text;
  for (const MetricFamily& family : families) {
    if (family.samples.empty()) continue;
    const bool counts = family.type == MetricFamily::Type::kCounter;
    text += "# HELP " + family.name + " " + escaped(family.help, /*quotes=*/false) + "\n";
    text += "# TYPE " + family.name + (counts ? " counter\n" : " gauge\n");
    for (const MetricFamily::Sample& sample : family.samples) {
      std::string labels;
      for (const auto& [name, value] : sample.labels)
        labels +=
            (labels.empty() ? "" : ",") + name + "=\"" + escaped(value, /*quotes=*/true) + "\"";
      text += family.name + (labels.empty() ? "" : "{" + labels + "}") + " " +
              metric_number(sample.value) + "\n";
    }
  }
  return text;
}

}  // namespace lockstep::inline v0
