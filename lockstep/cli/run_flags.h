// The flags of `lockstep run`, as they were written: torchrun's under torchrun's names, and
// mpirun's -np and -H.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::cli {

struct RunFlags {
  std::string nproc = "1";  // a number, auto, cpu or gpu
  bool nproc_given = false;
  std::string nnodes = "1";
  int node_rank = 0;
  std::string hosts;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  bool standalone = false;
  std::string rdzv_id;
  std::string role = "default";
  int max_restarts = 0;
  double grace = 5;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string show_ranks;
  std::string signals;
  std::string numa_binding;
  bool prefix = false;
  bool no_pin = false;
  std::optional<int> threads;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool no_use_env = false;
  bool help = false;
  std::vector<std::string> refused;  // flags of torchrun's that were given and have no counterpart
  std::vector<std::string> program;  // the program and its arguments
};

// Throws UsageError. Flags that are not given are looked up as torchrun does, in PET_<NAME>.
RunFlags parse_run_flags(const std::vector<std::string>& arguments, const EnvLookup& env);

std::string run_help();

}  // namespace lockstep::cli
