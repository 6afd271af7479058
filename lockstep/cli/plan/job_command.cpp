#include "lockstep/cli/plan/job_command.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/cli/plan/job_report.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/report/table.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace {

std::string speed_text(double flops) {
  return flops > 0 ? fixed(flops / 1e12, flops < 1e13 ? 1 : 0) : "-";
}

std::string list_text(size_t columns) {
  Table machines({{"machine", Align::kLeft},
                  {"float32"},
                  {"bfloat16"},
                  {"float8"},
                  {"memory"},
                  {"GB/s"},
                  {"inside"},
                  {"between"},
                  {"ranks a host"}});
  for (const std::string& name : plan::machine_names()) {
    const plan::Machine& one = plan::known_machine(name);
    machines.add({name, speed_text(one.float32), speed_text(one.bfloat16), speed_text(one.float8),
                  bytes_text(one.memory), fixed(one.memory_bandwidth / 1e9, 0),
                  fixed(one.inside.bandwidth / 1e9, 0), fixed(one.between.bandwidth / 1e9, 1),
                  std::to_string(one.ranks_per_host)});
  }
  Table conventions({{"FLOPs", Align::kLeft}, {"who counts so", Align::kLeft}});
  for (const plan::FlopConvention& one : plan::flop_conventions())
    conventions.add({one.name, one.used_by});
  return machines.str() +
         wrapped("TFLOP/s and links (GB/s, one way) are those of one rank.", 0, 0, columns) +
         "\n\n" + wrapped("models: " + joined(plan::known_models()), 0, 4, columns) + "\n\n" +
         wrapped("stacks: " + joined(plan::stack_names()), 0, 4, columns) + "\n\n" +
         conventions.str();
}

}  // namespace

int plan_job_command(const PlanFlags& flags, const PlanParser& parser) {
  const size_t columns = columns_of(STDOUT_FILENO, 120);
  if (flags.list) {
    write_stdout(list_text(columns));
    return 0;
  }
  check_output_file(flags.svg);
  check_output_file(flags.json);
  const JobPlan job = plan_job(flags, parser);
  write_for_people(flags.fits ? fits_line(job) + "\n" : text_of(job, columns),
                   {flags.svg, flags.json});
  if (!flags.svg.empty()) write_output_file(flags.svg, job_svg(job));
  write_output_file(flags.json, job_json(job).dump(2) + "\n");
  const plan::Candidate* shown = job.shown();
  return flags.fits && (shown == nullptr || !shown->estimate.fits()) ? 1 : 0;
}

}  // namespace lockstep::inline v0::cli
