#include "lockstep/cli/engine/checkpoint/command.h"

#include <iostream>

#include "lockstep/cli/option_table.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::engine {

int checkpoint_command(const Arguments& arguments) {
  const std::string kind = arguments.empty() ? "" : arguments[0];
  const std::pair<const char*, int (*)(const Arguments&)> kinds[] = {
      {"inspect", checkpoint_inspect},
      {"convert", checkpoint_convert},
      {"consolidate", checkpoint_consolidate},
      {"reshard", checkpoint_reshard}};
  for (const auto& [name, command] : kinds) {
    if (kind == name) return command({arguments.begin() + 1, arguments.end()});
  }
  return run_guarded("checkpoint", [&]() -> int {
    if (kind == "--help" || kind == "-h") {
      std::cout << cli::help_output(
          "lockstep checkpoint", {"inspect", "convert", "consolidate", "reshard"},
          "Usage: lockstep checkpoint inspect|convert|consolidate|reshard [OPTIONS]\n\nShows "
          "what a checkpoint or a file of tensors holds, writes its tensors as a safetensors\n"
          "file, or writes a checkpoint again in one file of a kind or in several. 'lockstep\n"
          "checkpoint inspect --help' and so on say more.\n\nExample:\n  lockstep checkpoint "
          "inspect runs/mnist\n");
      return 0;
    }
    if (kind.empty())
      throw InvalidArgument("what to do is missing; give inspect, convert, consolidate or reshard");
    throw InvalidArgument("there is no 'checkpoint " + kind + "'" +
                          cli::suggestion(kind, {"inspect", "convert", "consolidate", "reshard"}) +
                          "; choose inspect, convert, consolidate or reshard");
  });
}

}  // namespace lockstep::inline v0::engine
