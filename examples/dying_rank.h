// DyingRank: the options of examples in which a rank kills itself, --kill-rank and --kill-step.
#pragma once

#include <lockstep/core/env.h>
#include <lockstep/launch/job_environment.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>

#include "number_checks.h"

struct DyingRank {
  int rank = -1;
  int64_t step = 20;

  void add_to(CLI::App& app) {
    app.add_option("--kill-rank", rank, "the rank that kills itself; -1: none")
        ->capture_default_str();
    app.add_option("--kill-step", step, "in which step, from 0")
        ->check(zero_or_more())
        ->capture_default_str();
  }
  // A process that was started anew does not die again.
  bool is_to_die(int this_rank, int64_t this_step) const {
    if (this_rank != rank || this_step != step) return false;
    return lockstep::launch::read_job_environment(lockstep::process_env()).restart_count == 0;
  }
  static void die() { ::kill(::getpid(), SIGKILL); }
};
