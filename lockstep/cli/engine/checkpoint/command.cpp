#include "lockstep/cli/engine/checkpoint/command.h"

#include <iostream>

#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"

namespace lockstep::engine {

int checkpoint_command(const Arguments& arguments) {
  const std::string kind = arguments.empty() ? "" : arguments[0];
  if (kind == "inspect") return checkpoint_inspect({arguments.begin() + 1, arguments.end()});
  if (kind == "convert") return checkpoint_convert({arguments.begin() + 1, arguments.end()});
  return run_guarded("checkpoint", [&]() -> int {
    if (kind == "--help" || kind == "-h") {
      std::cout
          << "Usage: lockstep checkpoint inspect|convert [options]\n\nShows what a checkpoint "
             "or a file of tensors holds, or writes its tensors as a safetensors file. "
             "'lockstep checkpoint inspect --help' and 'lockstep checkpoint convert --help' "
             "say more.\n";
      return 0;
    }
    throw InvalidArgument("there is no 'checkpoint " + kind + "'" +
                          cli::suggestion(kind, {"inspect", "convert"}) +
                          "; choose inspect or convert");
  });
}

}  // namespace lockstep::engine
