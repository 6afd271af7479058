#include <algorithm>
#include <charconv>

#include "lockstep/cli/plan/job_report.h"
#include "lockstep/plan/pipeline_plan.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/pipeline_picture.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

using plan::Candidate;
using plan::Estimate;

constexpr int kWidth = 900;
constexpr size_t kMostBars = 10;

std::vector<Candidate> shown_in(const JobPlan& job) {
  std::vector<Candidate> shown = job.found.best;
  if (job.one) shown = {*job.one};
  if (shown.size() > kMostBars) shown.resize(kMostBars);
  if (!job.one) shown.insert(shown.end(), job.found.too_large.begin(), job.found.too_large.end());
  return shown;
}

std::string label_of(const Candidate& candidate) {
  return mesh_text(candidate.layout) +
         (candidate.layout.zero > 0 ? " zero " + std::to_string(candidate.layout.zero) : "");
}

// Six parts, one for each colour that people with colour blindness can distinguish.
std::string memory_chart(const JobPlan& job, const std::vector<Candidate>& candidates) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  BarChart chart{
      .title = "Memory of the fullest rank; a rank has " + bytes_text(job.machine.memory),
      .x_label = "GiB",
      .parts = {"parameters", "gradients", "optimizer", "gathered and buffers", "activations",
                "beside tensors"},
      .colours = {part_colour("parameters"), part_colour("gradients"), part_colour("state"),
                  part_colour("buffers"), part_colour("activations"), 5},
      .bars = {},
      .width = kWidth};
  for (const Candidate& candidate : candidates) {
    const plan::MemoryParts& m = candidate.estimate.memory.of_worst();
    std::vector<double> parts{m.parameters,
                              m.gradients,
                              m.optimizer,
                              m.gathered + m.buffers,
                              m.activations + m.logits,
                              m.fixed + m.fragmentation};
    for (double& part : parts) part /= kGiB;
    chart.bars.push_back({label_of(candidate), parts,
                          bytes_text(m.total()) + (candidate.estimate.fits() ? "" : ", too much")});
  }
  return svg_bar_chart(chart);
}

std::string time_chart(const std::vector<Candidate>& candidates) {
  BarChart chart{.title = "Time of a step",
                 .x_label = "seconds",
                 .parts = {"computation", "recomputation", "exposed communication", "bubble",
                           "optimizer", "late ranks", "host"},
                 .colours = {5, 1, 0, part_colour("waiting"), part_colour("optimizer"), 4, 3},
                 .bars = {},
                 .width = kWidth};
  for (const Candidate& candidate : candidates) {
    const plan::TimeParts& t = candidate.estimate.time;
    chart.bars.push_back({label_of(candidate),
                          {t.matrices + t.attention + t.elementwise + t.head, t.recomputation,
                           t.exposed(), t.bubble, t.optimizer, t.late, t.host},
                          seconds_text(candidate.estimate.step)});
  }
  return svg_bar_chart(chart);
}

// The schedule of the pipeline with its own times, of so many micro-batches as a picture can show;
// "" without a pipeline, and where it is too long.
std::string schedule_picture(const Candidate& candidate) {
  constexpr int64_t kMostActions = 6000;
  const plan::Layout& layout = candidate.layout;
  if (layout.pipe == 1) return "";
  const int64_t batches = std::min<int64_t>(layout.micro_batches(), int64_t{2} * layout.pipe);
  if (batches * layout.pipe * layout.chunks * 3 > kMostActions) return "";
  const double computed =
      plan::computed_seconds(candidate.estimate.time) - candidate.estimate.time.optimizer;
  const double again = candidate.estimate.time.recomputation;
  const double of_one = (computed - again) / static_cast<double>(layout.micro_batches()) / 3;
  const double again_of_one = again / static_cast<double>(layout.micro_batches());
  return pipeline_svg(plan_pipeline(
      layout.schedule,
      {.stages = layout.pipe, .micro_batches = static_cast<int>(batches), .chunks = layout.chunks},
      {.forward = of_one,
       .backward_input = of_one + again_of_one,
       .backward_weight = of_one,
       .communication = 0}));
}

int attribute_of(const std::string& svg, const std::string& name) {
  const size_t at = svg.find(name + "=\"");
  int value = 0;
  if (at != std::string::npos)
    std::from_chars(svg.data() + at + name.size() + 2, svg.data() + svg.size(), value);
  return value;
}

// Pictures below each other.
std::string stacked(const std::vector<std::string>& pictures) {
  int width = 0, height = 0;
  std::string inner;
  for (const std::string& picture : pictures) {
    if (picture.empty()) continue;
    inner += "<svg y=\"" + std::to_string(height) + "\" " + picture.substr(5);
    width = std::max(width, attribute_of(picture, "width"));
    height += attribute_of(picture, "height") + 12;
  }
  return svg_open(width, height) + inner + "</svg>\n";
}

}  // namespace

std::string job_svg(const JobPlan& job) {
  const std::vector<Candidate> candidates = shown_in(job);
  const Candidate* shown = job.shown();
  return stacked({memory_chart(job, candidates), time_chart(candidates),
                  shown != nullptr ? schedule_picture(*shown) : ""});
}

}  // namespace lockstep::inline v0::cli
