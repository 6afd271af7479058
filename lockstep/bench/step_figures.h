// The figures of `lockstep bench step`. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"

namespace lockstep::bench {

// Milliseconds of one step of one process.
struct StepParts {
  double data = 0;
  double forward = 0;
  double backward = 0;   // its arithmetic
  double averaging = 0;  // during backward: buckets are filled and reductions move on
  double wait = 0;       // for reductions, after the arithmetic
  double optimizer = 0;
  double total() const { return data + forward + backward + averaging + wait + optimizer; }
};

// What a process did at one turn: its parts, step by step, and the memory that it holds, in bytes,
// pages that it shares counted by its share ("proportional set size").
struct StepTurn {
  std::vector<StepParts> steps;
  double pss_bytes = 0;
};
std::string to_line(const StepTurn& turn);          // one line of JSON
StepTurn parse_turn_line(const std::string& line);  // throws InvalidArgument

// One contender's turns: by round, by process.
struct StepSeries {
  std::string strategy;
  int nproc = 1;
  int64_t batch = 1;  // samples of a process's step
  std::vector<std::vector<StepTurn>> rounds;
};

// The first series is what the others are compared with. A row's figures:
//   model, strategy, nproc, batch_per_process
//   steps                   timed, of each process
//   ms_per_step, p95_ms     over the steps, each the mean over the processes; the first a median
//   samples_per_s           of all processes, from ms_per_step
//   parts_ms                by name, means over steps and processes
//   pss_bytes               summed over the processes, the last turn's
//   times_first             samples a second by those of the first row: put_ratios()
// Requires: a step in every turn, and equally many rounds in all.
std::vector<Row> make_step_rows(const std::string& model, const std::vector<StepSeries>& all);

std::string step_table(const std::vector<Row>& rows);
std::string step_svg(const std::vector<Row>& rows);

}  // namespace lockstep::bench
