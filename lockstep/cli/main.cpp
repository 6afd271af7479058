#include "lockstep/cli/commands.h"
#include "lockstep/core/standard_streams.h"

int main(int argc, char** argv) {
  lockstep::open_standard_streams();
  return lockstep::cli::main_of_lockstep({argv + 1, argv + argc});
}
