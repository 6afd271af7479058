#include "lockstep/testing/mpirun_hosts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::testing {
namespace {

std::string path_of(const UniqueFd& fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd.get());
}

// mpirun reaches other hosts by a program that is given a host and a command, as ssh is; MPICH's
// has -x before them. This one has no name in the file system, and is open for reading only, since
// a file that is written cannot run.
UniqueFd make_remote_shell(const NetworkNamespaces& network, const MpirunHosts::Prefix& prefix) {
  std::string script = "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1; shift\ncase $host in\n";
  for (int host = 0; host < network.size(); ++host) {
    script += network.address(host) + ") exec ";
    for (const std::string& word : prefix(host)) script += word + " ";
    script += "/bin/sh -c \"$*\";;\n";
  }
  script += "esac\necho \"no host $host\" >&2; exit 255\n";
  const UniqueFd written(::memfd_create("remote-shell", MFD_CLOEXEC));
  if (!written ||
      ::write(written.get(), script.data(), script.size()) != static_cast<ssize_t>(script.size())) {
    throw system_error("cannot write a program for mpirun", errno);
  }
  UniqueFd read(::open(path_of(written).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read) throw system_error("cannot open a program for mpirun", errno);
  return read;
}

}  // namespace

MpirunHosts::MpirunHosts(const NetworkNamespaces& network, int per_host, Prefix prefix)
    : prefix_(std::move(prefix)), remote_shell_(make_remote_shell(network, prefix_)) {
  for (int host = 0; host < network.size(); ++host)
    hosts_ += (host == 0 ? "" : ",") + network.address(host) + ":" + std::to_string(per_host);
}

SubprocessOptions MpirunHosts::process(const launch::Mpirun& mpirun, launch::MpirunJob job) const {
  const std::string shell = path_of(remote_shell_);
  std::vector<std::string> flags;
  if (mpirun.family == launch::MpiFamily::kOpenMpi) {
    flags = {"-H", hosts_};
    for (const auto& [name, value] : {std::pair<std::string, std::string>("plm_rsh_agent", shell),
                                      {"oob_tcp_if_include", "eth0"},
                                      {"btl_tcp_if_include", "eth0"}}) {
      flags.insert(flags.end(), {"--mca", name, value});
    }
  } else {
    flags = {"-hosts", hosts_, "-launcher", "ssh", "-launcher-exec", shell, "-iface", "eth0"};
    // The hosts share a kernel, and UCX would use its shared memory.
    job.env.insert({{"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "eth0"}});
  }
  job.flags.insert(job.flags.begin(), flags.begin(), flags.end());
  SubprocessOptions options = launch::mpirun_process(mpirun, job);
  options.command.front() = mpirun.file;
  const std::vector<std::string> prefix = prefix_(0);
  options.command.insert(options.command.begin(), prefix.begin(), prefix.end());
  options.program.clear();  // the prefix's, on PATH
  return options;
}

}  // namespace lockstep::inline v0::testing
