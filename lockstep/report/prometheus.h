// Metrics in Prometheus' text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/). Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The media type of the text.
inline constexpr const char* kPrometheusMediaType = "text/plain; version=0.0.4; charset=utf-8";

// The names of labels with their values.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A metric by its name, with a value for each set of labels.
struct MetricFamily {
  // A counter only rises, but begins anew with the process.
  enum class Type { kCounter, kGauge };
  // A value.
  struct Sample {
    MetricLabels labels = {};
    double value = 0;
  };
  std::string name;  // letters, digits and "_"; of a counter with the ending "_total"
  Type type = Type::kGauge;
  std::string help = {};  // one sentence
  std::vector<Sample> samples = {};
};

// The families, in their order; those without a sample are left out. Numbers are exact.
LOCKSTEP_API std::string prometheus_text(const std::vector<MetricFamily>& families);

}  // namespace lockstep::inline v0
