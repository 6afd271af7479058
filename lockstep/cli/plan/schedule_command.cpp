#include "lockstep/cli/plan/schedule_command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lockstep/cli/plan/pictures.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/report/pipeline_picture.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace {

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
  if (flags.size.stages == 0)
    throw UsageError("--stages is required, or --model for a training job");
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

void show_schedule(const PlanFlags& flags) {
  if (!flags.measured.empty()) {
    show_measured(flags);
    return;
  }
  check_required(flags);
  const PipelineTimes times = times_of(flags);
  check_size(flags.size);
  if (flags.schedule.empty()) {
    if (!flags.svg.empty() || !flags.json.empty())
      throw UsageError("--svg and --json are of one schedule; give --schedule, one of " +
                       joined(schedule_names()));
    compare(flags, times);
    return;
  }
  check_output_file(flags.svg);
  check_output_file(flags.json);
  const PlannedPipeline plan = plan_pipeline(flags.schedule, flags.size, times);
  write_for_people(text_of(plan, columns_of(STDOUT_FILENO, 120)), {flags.svg, flags.json});
  if (!flags.svg.empty()) write_output_file(flags.svg, pipeline_svg(plan));
  write_output_file(flags.json, pipeline_json(plan).dump(2) + "\n");
}

}  // namespace lockstep::inline v0::cli
