// The results of `lockstep compare --parallelism`: a table, JSON, pictures, a page. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/engine/compare/parallelism_rank.h"
#include "lockstep/cli/engine/compare/parallelism_ways.h"
#include "lockstep/report/html_page.h"

namespace lockstep::inline v0::engine {

// A way and its runs.
struct DividedRow {
  DividedWay way;
  DividedTheory theory;
  double planned_bytes = 0;
  std::vector<DividedRecord> runs;  // empty where it failed
  std::string failure = {};
  // A step's, on the machine that was given; or one for each time that this one was measured.
  std::vector<double> planned_ms = {};

  double step_ms() const;  // median over the runs of the slowest rank's median
  double spread() const;   // (longest - shortest) / step_ms()
  // The median of the planned ones; nothing if none is.
  std::optional<double> planned_step_ms() const;
  // The last run's: longest span / mean computation - 1; 0 without a pipeline.
  double bubble() const;
  DividedRank most() const;  // the last run's largest value of each figure
  double sent() const;       // the rank's that sends most
  double bytes() const;      // the last run's, of tensors, of the rank that has most
};

struct DividedComparison {
  DividedSettings settings;
  std::vector<DividedRow> rows;
  std::vector<LeftOutWay> left_out;
  std::string processor, date;
  int64_t processors = 0;
};

// A row's activations in theory, in bytes, from those of one process. These are read from the first
// row with data alone, which must have run; 0 without it.
double activations_in_theory(const DividedComparison& comparison, const DividedRow& row);

// The choice of a plan, as of `lockstep train --mesh auto`, among ways that train the same model.
struct PlannedChoice {
  std::string way;
  double behind = 0;  // how much longer its step was measured than the shortest, as a share of this
};
// Nothing unless two such ways or more are planned and have run.
std::optional<PlannedChoice> planned_choice(const DividedComparison& comparison);

std::string divided_table(const DividedComparison& comparison);
nlohmann::ordered_json to_json(const DividedComparison& comparison);
Words divided_memory_picture(const DividedComparison& comparison);
Words divided_time_picture(const DividedComparison& comparison);
std::string divided_page(const DividedComparison& comparison);

}  // namespace lockstep::inline v0::engine
