#include "lockstep/cli/plan/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/option_table.h"
#include "lockstep/cli/plan/pictures.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/report/pipeline_picture.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace {

struct PlanFlags {
  std::string schedule;
  PipelineSize size{.stages = 0, .micro_batches = 0};
  std::string times = "1,1,1";
  double communication = 0;
  std::string measured;
  std::string svg, json;
  bool help = false;
};

class PlanParser {
 public:
  explicit PlanParser(PlanFlags& flags)
      : app_(
            "Shows what a pipeline's schedule will do: who computes what when, how long stages "
            "wait, what they hold.",
            "lockstep plan") {
    app_.set_help_flag();
    app_.footer(
        "Without --schedule: all schedules of this size, a line each.\n"
        "With --measured: what a pipeline has done, beside its plan, instead.\n"
        "Exit code: 0, or 2 for a wrong flag.");
    add_example(app_,
                {"lockstep plan --stages 4 --micro-batches 8",
                 "lockstep plan --schedule zb-h1 --stages 4 --micro-batches 8 --svg plan.svg"});
    app_.add_option("--schedule", flags.schedule, "One of " + joined(schedule_names()))
        ->type_name("NAME");
    app_.add_option("--stages", flags.size.stages,
                    "(required, but with --measured) Ranks along the pipeline")
        ->type_name("P")
        ->check(CLI::Range(1, 512));
    app_.add_option("--micro-batches", flags.size.micro_batches,
                    "(required, but with --measured) Micro-batches of a step")
        ->type_name("M")
        ->check(CLI::Range(1, 4096));
    app_.add_option("--chunks", flags.size.chunks,
                    "Chunks of the model a stage has; interleaved takes any number")
        ->type_name("V")
        ->check(CLI::Range(1, 26));
    app_.add_option("--times", flags.times,
                    "What a stage takes for a micro-batch: forward, backward of inputs, backward "
                    "of weights; in any unit [1,1,1]")
        ->type_name("F,B,W");
    app_.add_option("--communication", flags.communication,
                    "What a message takes from one stage to another [0]")
        ->type_name("TIME")
        ->check(CLI::Range(0.0, 1e12));
    auto* const measured =
        app_.add_option("--measured", flags.measured,
                        "What a pipeline has written of a step (pipeline_json()); drawn below what "
                        "was planned");
    measured->type_name("FILE");
    for (const char* other :
         {"--schedule", "--stages", "--micro-batches", "--chunks", "--times", "--communication"})
      measured->excludes(app_.get_option(other));
    app_.add_option("--svg", flags.svg, "Draw the schedule there")->type_name("FILE");
    app_.add_option("--json", flags.json, "Write the schedule and its times there")
        ->type_name("FILE");
    app_.add_flag("--help,-h", flags.help, "This text");
  }

  void parse(const std::vector<std::string>& words) { parse_options(app_, words); }
  std::string help() const { return help_of(app_, help_width()); }
  OptionTable table() const { return table_of(app_); }

 private:
  CLI::App app_;
};

PipelineTimes times_of(const PlanFlags& flags) {
  double numbers[3] = {};
  const char* at = flags.times.data();
  const char* const end = at + flags.times.size();
  size_t read = 0;
  for (; read < 3; ++read) {
    if (read > 0 && (at == end || *at++ != ',')) break;
    const auto [next, error] = std::from_chars(at, end, numbers[read]);
    // Refuses values above 0 that are too small for a picture to divide by.
    const bool drawn = numbers[read] == 0 || (numbers[read] >= 1e-12 && numbers[read] <= 1e12);
    if (error != std::errc() || !drawn) break;
    at = next;
  }
  if (read != 3 || at != end || numbers[0] + numbers[1] + numbers[2] == 0)
    throw UsageError("--times is '" + flags.times +
                     "'; give three times that are not all 0, such as 1,1,1");
  if (!(flags.communication >= 0))  // CLI11 takes nan for a number of any range
    throw UsageError("--communication is no time; give 0 or more");
  return {numbers[0], numbers[1], numbers[2], flags.communication};
}

// A larger picture is of no use, and a larger plan takes gigabytes.
void check_size(const PipelineSize& size) {
  constexpr int64_t kMost = 200'000;
  const int64_t chunks = std::max(size.chunks, 2);
  if (chunks * size.stages * size.micro_batches > kMost)
    throw UsageError("--stages, --micro-batches and --chunks (2 or more) multiply to " +
                     std::to_string(chunks * size.stages * size.micro_batches) + "; give " +
                     std::to_string(kMost) + " at most");
}

// A schedule that does not go with this size is reported, and the others are shown.
void compare(const PlanFlags& flags, const PipelineTimes& times) {
  std::vector<PlannedPipeline> plans;
  std::string refused;
  for (const std::string& name : schedule_names()) {
    PipelineSize size = flags.size;
    // The number of chunks only concerns interleaved.
    if (name != "interleaved") size.chunks = 0;
    try {
      plans.push_back(plan_pipeline(name, size, times));
    } catch (const InvalidArgument& error) {
      refused += std::string("\n") + error.what();
    }
  }
  write_stdout(std::to_string(flags.size.stages) + " stages, " +
               std::to_string(flags.size.micro_batches) + " micro-batches\n\n" +
               comparison_of(plans) + refused + (refused.empty() ? "" : "\n"));
}

// The options that --measured does not take.
void check_required(const PlanFlags& flags) {
  if (flags.size.stages == 0) throw UsageError("--stages is required");
  if (flags.size.micro_batches == 0) throw UsageError("--micro-batches is required");
}

void show_measured(const PlanFlags& flags) {
  check_output_file(flags.svg);
  check_output_file(flags.json);
  const std::string text = [&flags] {
    try {
      return read_named_file(flags.measured);
    } catch (const InvalidArgument& error) {
      throw UsageError(std::string("--measured: ") + error.what() +
                       "; give a file that a pipeline's program wrote");
    }
  }();
  const MeasuredPipeline measured = parse_measured_pipeline(text, flags.measured);
  write_for_people(text_of(measured), {flags.svg, flags.json});
  if (!flags.svg.empty()) write_output_file(flags.svg, pipeline_svg(measured));
  write_output_file(flags.json, pipeline_json(measured).dump(2) + "\n");
}

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  PlanParser parser(flags);
  // This comes before the required options, because "--help" alone is no mistake.
  for (const std::string& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    write_stdout(help_output(parser.table(), parser.help()));
    return 0;
  }
  parser.parse(arguments);
  if (!flags.measured.empty()) {
    show_measured(flags);
    return 0;
  }
  check_required(flags);
  const PipelineTimes times = times_of(flags);
  check_size(flags.size);
  if (flags.schedule.empty()) {
    if (!flags.svg.empty() || !flags.json.empty())
      throw UsageError("--svg and --json are of one schedule; give --schedule, one of " +
                       joined(schedule_names()));
    compare(flags, times);
    return 0;
  }
  check_output_file(flags.svg);
  check_output_file(flags.json);
  const PlannedPipeline plan = plan_pipeline(flags.schedule, flags.size, times);
  write_for_people(text_of(plan, columns_of(STDOUT_FILENO, 120)), {flags.svg, flags.json});
  if (!flags.svg.empty()) write_output_file(flags.svg, pipeline_svg(plan));
  write_output_file(flags.json, pipeline_json(plan).dump(2) + "\n");
  return 0;
}

OptionTable plan_table() {
  PlanFlags flags;
  return PlanParser(flags).table();
}

std::string plan_help() {
  PlanFlags flags;
  return PlanParser(flags).help();
}

}  // namespace lockstep::inline v0::cli
