// The options of `lockstep plan`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace CLI {
class App;
}

namespace lockstep::inline v0::cli {

struct PlanFlags {
  // The options of both a training job's layout and a pipeline's schedule.
  std::string schedule;
  PipelineSize size{.stages = 0, .micro_batches = 0};  // a job's: the chunks alone
  std::string svg, json;
  bool help = false;
  // The options of a pipeline's schedule.
  std::string times = "1,1,1";
  double communication = 0;
  std::string measured;
  // The options of a training job. 0 and "": not given.
  std::string model, hardware, mesh, precision, activations;
  std::string stack = "lockstep", optimizer = "adamw", flops = "6n+attention";
  int ranks = 0;
  int64_t global_batch = 0, sequence = 0, micro_batch = 0;
  std::optional<int> zero = {};
  bool divided_rows = false, float32_parameters = false;
  size_t top = 10;
  bool fits = false, list = false;
  // The options of what-if questions. Hours and seconds are as they are typed.
  std::vector<std::string> slow_links = {};
  double straggler = 1;
  double rank_mtbf_hours = 0, host_mtbf_hours = 0;
  std::string checkpoint_stall;  // seconds, or a run that has measured them
  double checkpoint_interval = 0, restart = 0;
  bool in_place = false;
  double price = 0, tokens = 0;
  // The calibration of this machine, for the help: the program with libtorch parses and measures.
  bool calibrate = false;
  std::string out;
  int calibrated_ranks = 2;
  std::string layers_of = "tiny,mini";
};

class PlanParser {
 public:
  explicit PlanParser(PlanFlags& flags);
  ~PlanParser();

  // Throws UsageError; also where options of a job and of a schedule are given together.
  void parse(const std::vector<std::string>& words);
  std::string help() const;
  OptionTable table() const;

  // After parse().
  bool given(const std::string& option) const { return given_.contains(option); }
  // Whether an option was given that only a training job has.
  bool of_job() const;

 private:
  // The first given option of a kind; "": none was.
  std::string first_given(bool (*which)(const std::string& option)) const;
  void add_schedule_options(PlanFlags& flags);
  void add_job_options(PlanFlags& flags);
  void add_layout_options(PlanFlags& flags);
  void add_what_if_options(PlanFlags& flags);
  void add_output_options(PlanFlags& flags);

  std::unique_ptr<CLI::App> app_;
  std::set<std::string> given_;
};

}  // namespace lockstep::inline v0::cli
