// The flags of `lockstep run` as they were written: torchrun's under torchrun's names, and those of
// mpirun, accelerate, deepspeed and horovodrun.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"
#include "lockstep/core/env.h"

namespace lockstep::inline v0::cli {

struct RunFlags {
  std::string nproc = "1";  // a number, auto, cpu or gpu
  bool nproc_given = false;
  std::string nnodes = "1";
  std::optional<int> node_rank;
  std::string hosts;
  std::string host_file;
  bool oversubscribe = false;
  std::optional<int> per_host;     // ranks on each host: mpirun's --npernode, MPICH's -ppn
  std::optional<int> processes;    // of all hosts together: accelerate's --num_processes
  std::optional<int> gpus;         // ranks on each host: deepspeed's --num_gpus
  std::optional<int> first_hosts;  // of the list: deepspeed's --num_nodes
  std::string include, exclude;    // deepspeed's HOST:GPU,GPU@HOST
  std::string gpu_ids;             // accelerate's
  std::string device;              // LOCKSTEP_DEVICE of the ranks; "": as in the environment
  std::string mixed_precision;     // accelerate's
  std::string bind_to, map_by;
  bool report_bindings = false;
  std::string working_directory;
  std::string backend;  // the ranks' LOCKSTEP_BACKEND; "": as in the environment
  std::string ssh_command;
  std::vector<std::string> forward;  // -x: NAME or NAME=VALUE
  std::string interface;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  bool standalone = false;
  std::string rdzv_id;
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  std::string rdzv_conf;
  std::string role = "default";    // ROLE_NAME of all ranks
  std::vector<std::string> roles;  // --role with a number of ranks: NAME=COUNT[,...]
  int max_restarts = 0;
  std::string on_failure;
  int spare_ranks = 0;
  int spare_nodes = 0;
  std::string simulate_failures;
  double grace = 5;
  std::optional<double> stop_grace;  // 25, or grace where that is more
  std::string output_filename;
  std::string log_dir;
  bool allow_lost_logs = false;
  std::string trace_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string show_ranks;
  std::string signals;
  std::string numa_binding;
  bool prefix = false;
  bool tag_output = false;
  std::string prefix_template;
  bool no_pin = false;
  std::optional<int> threads;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool no_use_env = false;
  bool help = false;
  std::vector<std::string> refused;  // given flags of torchrun's that have no counterpart
  std::vector<std::string> program;  // the program and its arguments

  // Whether they name the hosts, whose agents this command then starts.
  bool names_hosts() const { return !hosts.empty() || !host_file.empty() || !include.empty(); }
};

// Parses the flags. A flag of torchrun's or Lockstep's own that is not given is looked up in
// PET_<NAME>, as torchrun does.
// Throws: UsageError.
RunFlags parse_run_flags(const std::vector<std::string>& arguments, const EnvLookup& env);

std::string run_help();
OptionTable run_table();

}  // namespace lockstep::inline v0::cli
