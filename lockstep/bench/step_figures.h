// The figures of `lockstep bench step`. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"

namespace lockstep::inline v0::bench {

// Milliseconds of one step of one process.
struct StepParts {
  double data = 0;
  double forward = 0;
  double backward = 0;   // its arithmetic
  double averaging = 0;  // during backward, for filling buckets and moving reductions on
  double wait = 0;       // after the arithmetic, for reductions
  double optimizer = 0;
  double total() const { return data + forward + backward + averaging + wait + optimizer; }
};

// One process's turn: the parts of every step, and the memory that the process holds, in bytes,
// where shared pages count by its share ("proportional set size").
struct StepTurn {
  std::vector<StepParts> steps;
  double pss_bytes = 0;
};
std::string to_line(const StepTurn& turn);          // one line of JSON
StepTurn parse_turn_line(const std::string& line);  // Throws: InvalidArgument

// The turns of one contender, by round and by process.
struct StepSeries {
  std::string strategy;
  int nproc = 1;
  int64_t batch = 1;  // samples of a process's step
  std::vector<std::vector<StepTurn>> rounds;
};

// Compares the series with the first one. A row's figures:
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

}  // namespace lockstep::inline v0::bench
