// on_ranks: the main() of the examples that need several ranks even when they are started by hand.
#pragma once

#include <lockstep/comm/init.h>
#include <lockstep/core/env.h>
#include <lockstep/core/log.h>
#include <lockstep/launch/job_environment.h>
#include <lockstep/launch/spawn.h>

#include <exception>
#include <functional>

// Runs `fn`, which calls init(), as the rank that a launcher made this process, or, without a launcher, on `nproc`
// processes that execute this program anew. Returns what main() returns.
inline int as_ranks(int nproc, const std::function<void()>& fn) {
  using namespace lockstep;
  try {
    const bool alone = launch::launcher_of(process_env()) == launch::Launcher::kNone;
    if (alone || launch::in_spawned_child()) return launch::spawn(nproc, fn).exit_code;
    fn();
    return 0;
  } catch (const std::exception& error) {
    log_error(error.what());
    return 1;
  }
}

// The same with an `fn` that needs nothing before.
inline int on_ranks(int nproc, const std::function<void(lockstep::Communicator&)>& fn) {
  return as_ranks(nproc, [&fn] {
    lockstep::Communicator comm = lockstep::init();
    fn(comm);
  });
}
