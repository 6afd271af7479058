// on_ranks: the main() of the examples that need several ranks even when they are started by hand.
#pragma once

#include <lockstep/comm/init.h>
#include <lockstep/core/env.h>
#include <lockstep/core/log.h>
#include <lockstep/launch/job_environment.h>
#include <lockstep/launch/spawn.h>

#include <exception>
#include <functional>

// Runs `fn` as the rank that a launcher made this process, or, without a launcher, on `nproc`
// processes that execute this program anew. Returns what main() returns.
inline int on_ranks(int nproc, const std::function<void(lockstep::Communicator&)>& fn) {
  using namespace lockstep;
  const auto as_rank = [&fn] {
    Communicator comm = init();
    fn(comm);
  };
  try {
    const auto job = launch::read_job_environment(process_env());
    if (job.launcher == launch::Launcher::kNone || launch::in_spawned_child()) {
      return launch::spawn(nproc, as_rank).exit_code;
    }
    as_rank();
    return 0;
  } catch (const std::exception& error) {
    log_error(error.what());
    return 1;
  }
}
