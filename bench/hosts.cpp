// `lockstep bench collectives` over several hosts, which are network namespaces of this machine
// with links of a given rate. mpirun starts the ranks, so that MPI can be measured beside the
// others in the same ranks. Needs root.
//
//   build/release/bin/bench/hosts --hosts 2 --per-host 2 --rate 1gbit -- --backends tcp,gloo,mpi-raw
//
// What stands behind the two dashes is for `lockstep bench collectives`.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0 {
namespace {

struct Options {
  int hosts = 2;
  int per_host = 1;
  std::string rate = "1gbit";
  std::vector<std::string> measured;
};

std::string path_of(const UniqueFd& fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd.get());
}

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

// mpirun reaches other hosts by a program that is given a host and a command, as ssh is. It has no
// name in the file system, and is open for reading only, since a file that is written cannot run.
UniqueFd make_remote_shell(const testing::NetworkNamespaces& network) {
  std::string script = "#!/bin/sh\nhost=$1; shift\ncase $host in\n";
  for (int host = 0; host < network.size(); ++host) {
    script += network.address(host) + ") exec ";
    for (const std::string& word : prefix_of(network, host)) script += word + " ";
    script += "/bin/sh -c \"$*\";;\n";
  }
  script += "esac\necho \"no host $host\" >&2; exit 1\n";
  const UniqueFd written(::memfd_create("remote-shell", MFD_CLOEXEC));
  if (!written ||
      ::write(written.get(), script.data(), script.size()) != static_cast<ssize_t>(script.size())) {
    throw system_error("cannot write a program for mpirun", errno);
  }
  UniqueFd read(::open(path_of(written).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read) throw system_error("cannot open a program for mpirun", errno);
  return read;
}

std::vector<std::string> flags_of(launch::MpiFamily family, const std::string& hosts,
                                  const std::string& remote_shell) {
  if (family == launch::MpiFamily::kOpenMpi) {
    return {"--host",
            hosts,
            "--mca",
            "plm_rsh_agent",
            remote_shell,
            "--mca",
            "oob_tcp_if_include",
            "eth0",
            "--mca",
            "btl_tcp_if_include",
            "eth0"};
  }
  return {"-hosts", hosts, "-iface", "eth0", "-launcher", "rsh", "-launcher-exec", remote_shell};
}

int run(const Options& options) {
  const std::string why = testing::NetworkNamespaces::unavailable();
  if (!why.empty()) {
    std::fprintf(stderr, "no network namespaces here: %s\n", why.c_str());
    return 2;
  }
  testing::NetworkNamespaces network(options.hosts);
  if (!options.rate.empty()) network.shape(options.rate);
  const UniqueFd remote_shell = make_remote_shell(network);
  std::string hosts;
  for (int host = 0; host < options.hosts; ++host) {
    hosts +=
        (host == 0 ? "" : ",") + network.address(host) + ":" + std::to_string(options.per_host);
  }
  // In the build, beside bin/bench/hosts.
  const auto program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lockstep")
          .lexically_normal();
  std::vector<std::string> command = {program.string(), "bench", "collectives"};
  command.insert(command.end(), options.measured.begin(), options.measured.end());
  const launch::Mpirun mpirun = launch::find_mpirun(process_env());
  SubprocessOptions job = launch::mpirun_process(
      mpirun, {.nproc = options.hosts * options.per_host,
               .command = std::move(command),
               .env = {{"GLOO_SOCKET_IFNAME", "eth0"}},
               .flags = flags_of(mpirun.family, hosts, path_of(remote_shell)),
               .no_input = true});
  const std::vector<std::string> prefix = prefix_of(network, 0);
  job.program = find_program(prefix.front());
  job.command.front() = mpirun.file;
  job.command.insert(job.command.begin(), prefix.begin(), prefix.end());
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
