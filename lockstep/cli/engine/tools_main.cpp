// lockstep-tools: `lockstep bench ...` and the other commands that measure and compare. `lockstep`
// executes it.
#include "lockstep/cli/engine/bench/command.h"
#include "lockstep/cli/engine/calibrate/command.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/command.h"
#include "lockstep/cli/engine/verify/command.h"

int main(int argc, char** argv) {
  using namespace lockstep::engine;
  return run_one_of({{"compare", compare_command},
                     {"bench", bench_command},
                     {"verify", verify_command},
                     {"plan", calibrate_command}},
                    argc, argv);
}
