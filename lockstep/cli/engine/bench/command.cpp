#include "lockstep/cli/engine/bench/command.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "lockstep/cli/engine/bench/collectives_command.h"
#include "lockstep/cli/option_table.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::engine {

void add_peers(CLI::App& app, bench::Peers& peers, const std::string& python_for) {
  peers.folder = self().parent_path() / "peers";
  app.add_option(
         "--peers", peers.folder,
         "the programs of others, bench/peers of Lockstep's sources [peers beside this one]")
      ->type_name("DIR");
  app.add_option("--python", peers.python, python_for + " [python3]")->type_name("PROGRAM");
}

int bench_command(const Arguments& arguments) {
  const std::string kind = arguments.empty() ? "" : arguments[0];
  if (kind == "collectives") return bench_collectives({arguments.begin() + 1, arguments.end()});
  if (kind == "step") return bench_step({arguments.begin() + 1, arguments.end()});
  if (kind == "rpc") return bench_rpc({arguments.begin() + 1, arguments.end()});
  return run_guarded("bench", [&]() -> int {
    if (kind == "--help" || kind == "-h") {
      std::cout << cli::help_output(
          "lockstep bench", {"collectives", "step", "rpc"},
          "Usage: lockstep bench collectives|step|rpc [OPTIONS]\n\nMeasures collectives, "
          "whole training steps, or remote calls. 'lockstep bench collectives\n--help', "
          "'lockstep bench step --help' and 'lockstep bench rpc --help' say more.\n\n"
          "Example:\n  lockstep bench step --model bert-mini --nproc 2\n");
      return 0;
    }
    if (kind.empty())
      throw InvalidArgument("what to measure is missing; give collectives, step or rpc");
    throw InvalidArgument("there is no benchmark '" + kind + "'" +
                          cli::suggestion(kind, {"collectives", "step", "rpc"}) +
                          "; choose collectives, step or rpc");
  });
}

}  // namespace lockstep::inline v0::engine
