// lockstep-engine: `lockstep train ...` and the other commands that train and use models.
// `lockstep` executes it.
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/diff/command.h"
#include "lockstep/cli/engine/inference/eval_command.h"
#include "lockstep/cli/engine/inference/predict_command.h"
#include "lockstep/cli/engine/train/command.h"

int main(int argc, char** argv) {
  using namespace lockstep::engine;
  return run_one_of({{"train", train_command},
                     {"eval", eval_command},
                     {"predict", predict_command},
                     {"diff", diff_command},
                     {"checkpoint", checkpoint_command}},
                    argc, argv);
}
