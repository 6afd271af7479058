#include "lockstep/cli/run/settle.h"

#include <algorithm>

#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {
namespace {

void check_count(const char* flag, std::optional<int> count) {
  if (count.value_or(1) < 1)
    throw UsageError(std::string(flag) + " is " + std::to_string(*count) + "; give 1 or more");
}

// The number of ranks on this host that `what` gives. An -np that is less wins: mpirun -np 2
// -npernode 4.
void set_ranks_here(RunFlags& flags, int ranks, const std::string& what) {
  const auto asked = flags.nproc_given ? parse_int(flags.nproc, 1) : std::nullopt;
  if (flags.nproc_given && (!asked || *asked > ranks))
    throw UsageError("-np " + flags.nproc + " contradicts " + what + ", which gives this host " +
                     std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"));
  if (asked) return;
  flags.nproc = std::to_string(ranks);
  flags.nproc_given = true;
}

// Open MPI's --npernode, deepspeed's --num_gpus, ppr:N:node.
void settle_per_host(RunFlags& flags, Mapping& mapping) {
  std::string what;
  const auto take = [&](std::optional<int> count, const std::string& flag) {
    check_count(flag.c_str(), count);
    if (!count) return;
    if (mapping.per_host && !what.empty() && *mapping.per_host != *count)
      throw UsageError(what + " and " + flag + "=" + std::to_string(*count) +
                       " contradict each other; give one of them");
    mapping.per_host = count;
    what = flag + "=" + std::to_string(*count);
  };
  if (mapping.per_host) what = "--map-by=" + flags.map_by;
  take(flags.per_host, "--npernode");
  take(flags.gpus, "--num-gpus");
  if (mapping.per_host && !flags.names_hosts()) set_ranks_here(flags, *mapping.per_host, what);
}

void settle_per_unit(RunFlags& flags, const Mapping& mapping, const MachineFacts& machine) {
  if (!mapping.per_unit) return;
  const std::string what = "--map-by=" + flags.map_by;
  if (flags.names_hosts())
    throw UsageError(what +
                     " needs to know the processors of the other hosts; use ppr:N:node, or one "
                     "lockstep run on each host (--nnodes)");
  set_ranks_here(flags, *mapping.per_unit * launch::unit_count(machine.processors, mapping.unit),
                 what);
}

// accelerate's --num_processes.
void settle_total(RunFlags& flags) {
  check_count("--num-processes", flags.processes);
  if (!flags.processes) return;
  const std::string what = "--num-processes=" + std::to_string(*flags.processes);
  if (flags.nproc_given)
    throw UsageError(what + " and -np " + flags.nproc + " contradict each other; give one of them");
  int here = *flags.processes;
  if (!flags.names_hosts()) {
    const auto hosts = parse_int(flags.nnodes, 1, 1 << 20);
    if (!hosts)
      throw UsageError(what + " counts the ranks of all hosts, and --nnodes=" + flags.nnodes +
                       " does not say how many there are; use -np for the ranks of each host");
    if (here % *hosts != 0)
      throw UsageError(what + " does not divide among --num-machines=" + flags.nnodes +
                       "; use -np for the ranks of each host");
    here /= static_cast<int>(*hosts);
  }
  flags.nproc = std::to_string(here);
  flags.nproc_given = true;
}

// accelerate starts a rank for each GPU that it is given, where nothing says how many.
void settle_gpus(RunFlags& flags) {
  if (flags.nproc_given || flags.names_hosts()) return;
  const bool some = !flags.gpu_ids.empty() && flags.gpu_ids != "all";
  if (!some && flags.device != "cuda") return;
  flags.nproc =
      some ? std::to_string(1 + std::count(flags.gpu_ids.begin(), flags.gpu_ids.end(), ','))
           : "gpu";
  flags.nproc_given = true;
}

void settle_host_count(RunFlags& flags) {
  check_count("--num-nodes", flags.first_hosts);
  if (!flags.first_hosts || flags.names_hosts()) return;
  const std::string count = std::to_string(*flags.first_hosts);
  if (flags.nnodes != "1" && flags.nnodes != count)
    throw UsageError("--num-nodes=" + count + " and --nnodes=" + flags.nnodes +
                     " contradict each other; give one of them");
  flags.nnodes = count;
}

}  // namespace

SettledFlags settle(const RunFlags& given, const MachineFacts& machine) {
  if (!given.mixed_precision.empty() && given.mixed_precision != "no")
    throw UsageError("--mixed-precision=" + given.mixed_precision +
                     ": the program chooses its precision: lockstep train --amp bf16, or "
                     "AcceleratorOptions::mixed_precision in a program of your own");
  SettledFlags settled{.flags = given, .mapping = parse_mapping(given.bind_to, given.map_by)};
  RunFlags& flags = settled.flags;
  Mapping& mapping = settled.mapping;
  mapping.placing.oversubscribe = mapping.placing.oversubscribe || flags.oversubscribe;
  if (flags.no_pin && mapping.binding.given)
    throw UsageError(
        "--no-pin and " +
        (flags.bind_to.empty() ? "--map-by=" + flags.map_by : "--bind-to=" + flags.bind_to) +
        " contradict each other; give one of them");
  settle_host_count(flags);
  settle_total(flags);
  settle_per_host(flags, mapping);
  settle_per_unit(flags, mapping, machine);
  settle_gpus(flags);
  return settled;
}

}  // namespace lockstep::inline v0::cli
