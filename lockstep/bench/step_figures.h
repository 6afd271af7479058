// The figures of `lockstep bench step`. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

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

struct StepRow {
  std::string strategy;
  int nproc = 1;
  int64_t batch = 1;
  int64_t steps = 0;       // timed, of each process
  double ms_per_step = 0;  // median over the steps, each the mean over the processes
  double p95_ms = 0;
  double samples_per_s = 0;  // of all processes, from ms_per_step
  StepParts parts;           // means over steps and processes
  double pss_bytes = 0;      // summed over the processes, the last turn's
  // Samples a second by those of the first row, round by round.
  double times_first = 1;                            // median
  double times_first_low = 1, times_first_high = 1;  // the least and greatest round
};

// The first series is what the others are compared with. Requires a step in every turn, and equally
// many rounds in all.
std::vector<StepRow> make_step_rows(const std::vector<StepSeries>& all);

std::string step_table(const std::vector<StepRow>& rows);
std::string step_svg(const std::string& model, const std::vector<StepRow>& rows);
nlohmann::ordered_json step_json(const std::string& model, const std::vector<StepRow>& rows);

}  // namespace lockstep::bench
