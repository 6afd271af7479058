// lockstep bench collectives
#pragma once

#include <string>
#include <vector>

#include "lockstep/bench/collectives.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

struct BenchArguments {
  bench::CollectivesOptions measured;
  std::vector<int64_t> nprocs = {2};
  std::string json;
  std::string fit;
  std::string svg;
  std::string rows_to;  // a rank writes its rows here instead of reporting them
};
// Throws: HelpShown, InvalidArgument.
BenchArguments parse_bench_arguments(const Arguments& arguments);

// Without a launcher it checks the arguments and starts the ranks, by mpirun if mpi is among the
// backends, once for each number of them. Under a launcher it is a rank.
int bench_collectives(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
