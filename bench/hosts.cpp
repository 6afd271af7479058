// `lockstep bench collectives` over several hosts, which are network namespaces of this machine
// with links of a given rate. mpirun starts the ranks, so that MPI can be measured beside the
// others in the same ranks. Needs root.
//
//   build/release/bin/bench/hosts --hosts 2 --per-host 2 --rate 1gbit -- --backends tcp,gloo,mpi-raw
//
// What stands behind the two dashes is for `lockstep bench collectives`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/mpirun_hosts.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0 {
namespace {

struct Options {
  int hosts = 2;
  int per_host = 1;
  std::string rate = "1gbit";
  std::vector<std::string> measured;
};

// The words that run a command on a host, on processors that no other host has: `lockstep bench`
// gives the first rank of each host that host's first processor.
std::vector<std::string> prefix_of(const testing::NetworkNamespaces& network, int host) {
  std::vector<std::string> words = network.prefix(host);
  const std::vector<int> cpus = allowed_cpus();
  const size_t each = cpus.size() / static_cast<size_t>(network.size());
  if (each == 0) return words;
  std::string list;
  for (size_t i = 0; i < each; ++i)
    list += (i == 0 ? "" : ",") + std::to_string(cpus[static_cast<size_t>(host) * each + i]);
  words.insert(words.end(), {"taskset", "-c", list});
  return words;
}

int run(const Options& options) {
  const std::string why = testing::NetworkNamespaces::unavailable();
  if (!why.empty()) {
    std::fprintf(stderr, "no network namespaces here: %s\n", why.c_str());
    return 2;
  }
  testing::NetworkNamespaces network(options.hosts);
  if (!options.rate.empty()) network.shape(options.rate);
  // In the build, beside bin/bench/hosts.
  const auto program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lockstep")
          .lexically_normal();
  std::vector<std::string> command = {program.string(), "bench", "collectives"};
  command.insert(command.end(), options.measured.begin(), options.measured.end());
  const testing::MpirunHosts mpirun(network, options.per_host,
                                    [&](int host) { return prefix_of(network, host); });
  SubprocessOptions job =
      mpirun.process(launch::find_mpirun(process_env()), {.nproc = options.hosts * options.per_host,
                                                          .command = std::move(command),
                                                          .env = {{"GLOO_SOCKET_IFNAME", "eth0"}},
                                                          .no_input = true});
  const UniqueFd silent = launch::silent_stdin();
  job.stdin_fd = silent.get();
  const ExitStatus status = Subprocess(job).wait(Deadline::after(Deadline::Duration::max()));
  return status.signal != 0 ? 128 + status.signal : status.exit_code;
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app("lockstep bench collectives over several hosts made of network namespaces");
  app.add_option("--hosts", options.hosts)->check(CLI::Range(1, 200));
  app.add_option("--per-host", options.per_host)->check(CLI::Range(1, 64));
  app.add_option("--rate", options.rate, "of each link, as tc says it; empty: not shaped");
  app.add_option("measured", options.measured, "behind --: flags of lockstep bench collectives");
  CLI11_PARSE(app, argc, argv);
  try {
    return lockstep::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
