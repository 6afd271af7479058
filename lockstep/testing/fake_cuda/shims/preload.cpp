// FakeCuda for a program that is not compiled for it:
//
//   LD_PRELOAD=lib/lockstep/liblockstep_fake_cuda.so LOCKSTEP_FAKE_CUDA=2 ./train
//
// The program's libtorch then has that many devices. Where it ends, the races of each process that
// used them are written to stderr, and with LOCKSTEP_FAKE_CUDA_REPORT=1 what was counted. With
// LOCKSTEP_FAKE_CUDA_FAULT=1:500 device 1 fails at its 500th operation of each process.
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"

namespace lockstep::inline v0::testing {
namespace {

void say(const std::string& line) {
  write_all(STDERR_FILENO,
            "[fake_cuda] process " + std::to_string(::getpid()) + ": " + line + "\n");
}

FakeCuda* installed = nullptr;  // what runs at the end of a program takes no argument

void report() {
  const FakeCudaCounts counts = installed->counts();
  if (counts.operations == 0) return;
  if (process_env()("LOCKSTEP_FAKE_CUDA_REPORT").value_or("") == "1") say(counts.text());
  for (const Race& race : installed->take_races()) say("race: " + race.text());
}

// Nothing may be thrown where a library is loaded or a program ends.
template <typename Work>
bool quietly(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    say(error.what());
    return false;
  }
}

__attribute__((constructor)) void install() {
  const bool done = quietly([] {
    const auto devices = env_int(process_env(), "LOCKSTEP_FAKE_CUDA");
    if (!devices) return;
    FakeCudaOptions options{.devices = static_cast<int>(*devices)};
    if (const auto fault = process_env()("LOCKSTEP_FAKE_CUDA_FAULT")) {
      const size_t colon = fault->find(':');
      const auto device = parse_int(std::string_view(*fault).substr(0, colon), 0);
      const auto at = colon == std::string::npos
                          ? std::nullopt
                          : parse_int(std::string_view(*fault).substr(colon + 1), 1);
      if (!device || !at)
        throw InvalidArgument("LOCKSTEP_FAKE_CUDA_FAULT=" + *fault +
                              ": expected DEVICE:OPERATION, such as 1:500");
      options.failing_device = static_cast<int>(*device);
      options.fails_at = *at;
    }
    installed = &FakeCuda::install(options);
    std::atexit([] { quietly(report); });
  });
  if (!done) ::_exit(2);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
