// lockstep-gpu-check: what scripts/gpu-check takes to a machine with a GPU.
#include <exception>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/gpu_check/options.h"
#include "lockstep/gpu_check/ranks.h"
#include "lockstep/gpu_check/runner.h"
#include "lockstep/gpu_check/steps.h"

int main(int argc, char** argv) {
  using namespace lockstep::
      gpu_check;  // NOLINT(google-build-using-namespace): this file has nothing else
  try {
    std::string help;
    const Options options = parse_options(argc, argv, &help);
    if (!help.empty()) {
      lockstep::write_stdout(help);
      return 0;
    }
    if (!options.contest.empty()) return run_contest(options);
    if (!options.job.empty()) return run_rank(options);
    if (!options.part.empty()) return run_part(options);
    return run_all(options);
  } catch (const lockstep::InvalidArgument& error) {
    lockstep::log_error(error.what());
    return 2;
  } catch (const std::exception& error) {
    lockstep::log_error(error.what());
    return 1;
  }
}
