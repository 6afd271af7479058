// The program that doctor_trace_mp_test starts: a rank of a job with the given fault.
//   doctor_test_program BEHAVIOUR [STORE RANK]   with a store: one of two ranks without a launcher
#include <ATen/ops/ones.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "lockstep/comm/init.h"

int main(int argc, char** argv) {
  const char* behaviour = argc > 1 ? argv[1] : "";
  const auto is = [&](const char* name) { return std::strcmp(behaviour, name) == 0; };
  try {
    lockstep::InitOptions options;
    options.timeout = std::chrono::seconds(is("late") ? 5 : 60);
    if (argc > 3) {
      options.init_method = std::string("file://") + argv[2];
      options.rank = std::atoi(argv[3]);
      options.world_size = 2;
      options.secret = "of this test";
    }
    auto comm = lockstep::init(options);
    const at::Tensor tensor = at::ones({1000});
    for (int step = 0; step < 3; ++step) comm.all_reduce(tensor);
    // It runs until it is stopped: rank 1 takes longer than the others, or all take equally long.
    for (int step = 0; (is("slow") || is("even")) && step < 4000; ++step) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(is("slow") && comm.rank() == 1 ? 100 : 15));
      comm.all_reduce(tensor);
      if (step == 5 && comm.rank() == 0) {
        std::printf("all are training\n");
        std::fflush(stdout);
      }
    }
    if (comm.rank() == 1) {
      if (is("die")) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(500));  // the others arrive at their next call
        ::raise(SIGKILL);
      }
      if (is("hang") || is("late")) {
        std::printf("rank 1 pauses\n");
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      }
      if (is("step")) comm.broadcast(tensor, 0);
    }
    comm.all_reduce(tensor);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
