// Tutorial 003, method 4: DistributedDataParallel on ranks that the program starts itself.
//   distributed_spawn --nproc 2 --data ... --vocab ...
#include <lockstep/core/errors.h>
#include <lockstep/launch/spawn.h>

#include "distributed_training.h"

int main(int argc, char** argv) {
  return text::run_program("distributed_spawn", argc, argv, [](const text::Settings& settings) {
    if (!lockstep::launch::in_spawned_child()) text::load_texts(settings, settings.nproc);
    const auto result = lockstep::launch::spawn(static_cast<int>(settings.nproc),
                                                [&] { text::train_distributed(settings); });
    if (result.exit_code != 0) std::exit(result.exit_code);  // the rank has said why
  });
}
