// Tutorial 003, method 3: DistributedDataParallel under a launcher.
//   lockstep run --nproc-per-node 2 distributed --data ... --vocab ...
#include "distributed_training.h"

int main(int argc, char** argv) {
  return text::run_program("distributed", argc, argv, text::train_distributed);
}
