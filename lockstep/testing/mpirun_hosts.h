// MpirunHosts: mpirun on hosts that are network namespaces. No libtorch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0::testing {

// Not thread-safe.
class MpirunHosts {
 public:
  // The words that run a command on a host: NetworkNamespaces::prefix(), perhaps with more.
  using Prefix = std::function<std::vector<std::string>(int host)>;

  // Every host takes `per_host` ranks. Requires: `network` and what `prefix` uses outlive this
  // object.
  // Throws: SystemError.
  MpirunHosts(const NetworkNamespaces& network, int per_host, Prefix prefix);

  // The process that runs `job` from host 0 and reaches the other hosts through their namespaces.
  // All traffic between hosts goes over eth0. It holds while this object lives.
  SubprocessOptions process(const launch::Mpirun& mpirun, launch::MpirunJob job) const;

 private:
  Prefix prefix_;
  std::string hosts_;  // with their numbers of ranks, as mpirun takes them
  UniqueFd remote_shell_;
};

}  // namespace lockstep::inline v0::testing
