#include "lockstep/cli/engine/calibrate/command.h"

#include <iostream>

#include "lockstep/cli/engine/calibrate/measure.h"
#include "lockstep/cli/plan/flags.h"
#include "lockstep/cli/plan/job_report.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace {

std::string text_of(const plan::Calibration& found, const plan::Measurements& measured) {
  Table products({{"product", Align::kLeft}, {"size"}, {"time"}, {"GFLOP/s"}});
  for (const plan::ProductSample& one : measured.products) {
    const auto size = static_cast<double>(one.size);
    products.add({plan::name_of(one.precision), std::to_string(one.size),
                  cli::seconds_text(one.seconds),
                  fixed(2 * size * size * size / one.seconds / 1e9, 1)});
  }
  const plan::Machine& machine = found.machine;
  const auto link = [](const plan::Link& one) {
    return fixed(one.bandwidth / 1e9, 2) + " GB/s, " + cli::seconds_text(one.latency) + " a step";
  };
  return products.str() + "\nOf each of " + std::to_string(machine.ranks_per_host) +
         " ranks: " + fixed(machine.float32 / 1e9, 1) + " GFLOP/s in float32, " +
         fixed(machine.bfloat16 / 1e9, 1) + " in bfloat16; memory " +
         cli::bytes_text(machine.memory) + " at " + fixed(machine.memory_bandwidth / 1e9, 1) +
         " GB/s; an operator " + cli::seconds_text(machine.launch) +
         "\nLinks inside: " + link(machine.inside) + "; between: " + link(machine.between) + " (" +
         measured.between_over + ")\n";
}

// What the figures are worth.
std::string load_text(double others) {
  constexpr double kDisturbed = 0.05;  // processors
  if (others <= kDisturbed) return "";
  return "Other processes used up to " + fixed(others, 2) +
         " processors meanwhile: measure again when the machine is quiet.\n";
}

int run_rank(const std::string& out, std::vector<MeasuredModel> models) {
  const bench::MachineFigures here = measure_this_host(std::move(models));
  if (launch::read_job_environment(process_env()).rank != 0) return 0;
  const plan::Calibration found = plan::calibration_of(here.measured);
  write_output_file(out, plan::to_json(found));
  if (out == kStdoutName) return 0;
  std::cout << text_of(found, here.measured) << load_text(here.others) << "Written: " << out
            << ". Use it: lockstep plan --hardware " << out << " ...\n"
            << std::flush;
  return 0;
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  return run_guarded("plan", [&] {
    cli::PlanFlags flags;
    cli::PlanParser parser(flags);
    parser.parse(arguments);
    if (!flags.calibrate) throw InvalidArgument("this program measures alone; give --calibrate");
    const std::string out = flags.out.empty() ? "machine.json" : flags.out;
    const auto job = launch::read_job_environment(process_env());
    std::vector<MeasuredModel> models = parse_measured_models(flags.layers_of);
    if (job.launcher != launch::Launcher::kNone) return run_rank(out, std::move(models));
    check_result_files({out});
    launch::LaunchOptions options;
    options.command = {self().string(), "plan"};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    options.program = options.command[0];
    options.nproc = flags.calibrated_ranks;
    options.pin = flags.calibrated_ranks <= usable_cpu_count();
    return launch::launch(options).exit_code;
  });
}

}  // namespace lockstep::inline v0::engine
