#include "lockstep/cli/commands.h"

int main(int argc, char** argv) {
  return lockstep::cli::main_of_lockstep({argv + 1, argv + argc});
}
