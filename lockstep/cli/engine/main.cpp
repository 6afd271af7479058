// lockstep-engine: `lockstep train ...` and the other commands that need libtorch; executed by
// `lockstep`.
#include <unistd.h>

#include <string>

#include "lockstep/cli/engine/bench/command.h"
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/engine/compare/command.h"
#include "lockstep/cli/engine/diff/command.h"
#include "lockstep/cli/engine/inference/eval_command.h"
#include "lockstep/cli/engine/inference/predict_command.h"
#include "lockstep/cli/engine/train/command.h"
#include "lockstep/cli/engine/verify/command.h"
#include "lockstep/core/log.h"
#include "lockstep/core/standard_streams.h"

int main(int argc, char** argv) {
  using namespace lockstep::engine;
  lockstep::open_standard_streams();
  const Arguments words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string command = words.empty() ? "" : words[0];
  const Arguments rest(words.begin() + (words.empty() ? 0 : 1), words.end());
  if (command == "train") return train_command(rest);
  if (command == "eval") return eval_command(rest);
  if (command == "predict") return predict_command(rest);
  if (command == "compare") return compare_command(rest);
  if (command == "diff") return diff_command(rest);
  if (command == "checkpoint") return checkpoint_command(rest);
  if (command == "bench") return bench_command(rest);
  if (command == "verify") return verify_command(rest);
  lockstep::write_all(STDERR_FILENO,
                      "lockstep: there is no command '" + command +
                          "'; choose train, eval, predict, compare, diff, checkpoint, bench "
                          "or verify\n");
  return 2;
}
