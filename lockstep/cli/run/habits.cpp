#include "lockstep/cli/run/habits.h"

#include <algorithm>

#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {
namespace {

Flag named(std::string name, std::string instead, std::string short_name = "") {
  return {.name = std::move(name),
          .short_name = std::move(short_name),
          .takes_value = false,
          .foreign = true,
          .instead = std::move(instead)};
}

// Several names with the same answer.
void add(std::vector<Flag>& flags, std::initializer_list<const char*> names, const char* instead) {
  for (const char* name : names) flags.push_back(named(name, instead));
}

std::vector<Flag> mpiruns() {
  std::vector<Flag> flags;
  add(flags, {"--mca", "--gmca", "--omca", "--prtemca", "--pmixmca"},
      "sets a parameter of Open MPI, and no MPI starts these ranks; leave it out, or use --backend "
      "mpi with OMPI_MCA_<name> in the environment");
  add(flags, {"--genv", "--env"},
      "is MPICH's; use -x NAME=VALUE, which sets a variable on every host");
  add(flags, {"--genvlist", "--envlist"}, "is MPICH's; use -x NAME for each variable");
  add(flags, {"--genvall", "--envall", "--genvnone", "--envnone"},
      "is MPICH's; ranks have this environment, and on other hosts LOCKSTEP_* and the variables of "
      "-x NAME");
  add(flags, {"--rank-by"},
      "is not supported: ranks are numbered host by host, and on a host in the order of --map-by");
  add(flags, {"--rankfile", "--rf"},
      "is not supported; use --bind-to and --map-by, or -H with the hosts in the order of their "
      "ranks");
  add(flags, {"--cpu-set", "--cpu-list", "--bind-core-list"},
      "is not supported; start it as 'taskset -c LIST lockstep run ...': ranks share the "
      "processors that lockstep run is allowed");
  add(flags, {"--timestamp-output"},
      "is not supported; pipe the output through 'ts', or use --log-dir");
  add(flags, {"--app", "--configfile"},
      "describes several programs, which is not supported; one program asks for its role: --role "
      "NAME=COUNT for each part");
  add(flags, {"--display-map", "--display-allocation", "--display"},
      "is Open MPI's; use --report-bindings, or --prefix to see each rank's number");
  add(flags, {"--npersocket"}, "is Open MPI's; use --map-by ppr:N:package");
  add(flags, {"--xml", "--xml-file"},
      "is Open MPI's; use --log-dir DIR for a file of each rank's output, or --prefix");
  add(flags, {"--timeout"},
      "is not supported by lockstep run; start it as 'timeout SECONDS lockstep run ...'");
  add(flags, {"--launcher"},
      "is not supported; other hosts are reached by ssh, or by the words of --ssh-command");
  return flags;
}

std::vector<Flag> accelerates() {
  std::vector<Flag> flags;
  add(flags, {"--config-file", "--default-config-file"},
      "is accelerate's; give its settings as flags: --num_processes, --num_machines, "
      "--machine_rank, --main_process_ip and --main_process_port are known");
  add(flags, {"--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--deepspeed-config-file"},
      "is accelerate's; the program chooses how it is divided: lockstep train --strategy, or the "
      "classes of docs/parallelism.md");
  add(flags, {"--dynamo-backend"}, "is torch.compile's, which C++ does not have; leave it out");
  add(flags, {"--gradient-accumulation-steps"},
      "is the program's own: gradient_accumulation_steps of an Accelerator or of TrainingArguments");
  add(flags, {"--tpu"},
      "is not supported; ranks run on CPUs, or with LOCKSTEP_DEVICE=cuda on GPUs");
  return flags;
}

std::vector<Flag> deepspeeds() {
  std::vector<Flag> flags;
  add(flags, {"--autotuning"}, "is deepspeed's, and not supported; leave it out");
  add(flags, {"--launcher-args"}, "is deepspeed's; use --ssh-command with ssh's own options");
  add(flags, {"--no-ssh", "--force-multi"},
      "is deepspeed's; use --nnodes and --node-rank on each host for a job without ssh");
  add(flags, {"--enable-each-rank-log"}, "is deepspeed's; use --log-dir DIR");
  add(flags, {"--elastic-training", "--min-elastic-nodes", "--max-elastic-nodes"},
      "is deepspeed's; use --nnodes MIN:MAX --rdzv-endpoint HOST:PORT on each host");
  return flags;
}

std::vector<Flag> horovodruns() {
  std::vector<Flag> flags;
  add(flags, {"--min-np", "--max-np", "--min-num-proc", "--max-num-proc"},
      "counts ranks; a job whose hosts come and go counts hosts: --nnodes MIN:MAX --rdzv-endpoint "
      "HOST:PORT on each host");
  add(flags, {"--host-discovery-script"},
      "is not supported: hosts join by themselves; start lockstep run with --nnodes MIN:MAX and "
      "--rdzv-endpoint HOST:PORT on each host that appears");
  add(flags, {"--gloo", "--use-gloo"},
      "is not needed: no MPI takes part, and ranks choose the fastest way; --backend gloo takes "
      "gloo's collectives");
  add(flags, {"--mpi", "--use-mpi"},
      "is horovodrun's; use --backend mpi, and mpirun starts the ranks");
  add(flags, {"--mpi-args"}, "is horovodrun's; start the program by mpirun itself");
  add(flags, {"--ssh-port"}, "is horovodrun's and deepspeed's; use --ssh-command \"ssh -p PORT\"");
  add(flags, {"--ssh-identity-file"}, "is horovodrun's; use --ssh-command \"ssh -i FILE\"");
  add(flags, {"--start-timeout"}, "is horovodrun's; use --rdzv-conf join_timeout=SECONDS");
  add(flags, {"--elastic-timeout"}, "is horovodrun's; use --rdzv-conf last_call_timeout=SECONDS");
  add(flags, {"--check-build"}, "is horovodrun's; use lockstep doctor");
  add(flags, {"--timeline-filename"}, "is horovodrun's; use --trace-dir DIR");
  add(flags, {"--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--autotune"},
      "is horovodrun's; the program has the size of its buckets, and nothing is to be tuned");
  return flags;
}

}  // namespace

const std::vector<Flag>& named_flags() {
  static const std::vector<Flag> kFlags = [] {
    std::vector<Flag> all;
    for (const auto& flags : {mpiruns(), accelerates(), deepspeeds(), horovodruns()})
      all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }();
  return kFlags;
}

void refuse_several_programs(const SplitCommandLine& line) {
  if (line.separated ||
      std::find(line.program.begin(), line.program.end(), ":") == line.program.end())
    return;
  throw UsageError(
      "':' starts several programs under mpirun, and lockstep run starts one; it asks for its role: "
      "--role NAME=COUNT for each part (if ':' is the program's own, write -- before the program)");
}

}  // namespace lockstep::inline v0::cli
