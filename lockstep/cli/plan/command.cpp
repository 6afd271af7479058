#include "lockstep/cli/plan/command.h"

#include "lockstep/cli/option_table.h"
#include "lockstep/cli/plan/flags.h"
#include "lockstep/cli/plan/job_command.h"
#include "lockstep/cli/plan/schedule_command.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0::cli {

bool plan_calibrates(const std::vector<std::string>& arguments) {
  if (asks_for_help(arguments)) return false;
  PlanFlags flags;
  PlanParser(flags).parse(arguments);
  return flags.calibrate;
}

int plan_command(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  PlanParser parser(flags);
  if (asks_for_help(arguments)) {
    write_stdout(help_output(parser.table(), parser.help()));
    return 0;
  }
  parser.parse(arguments);
  if (parser.of_job()) return plan_job_command(flags, parser);
  show_schedule(flags);
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
