// NetworkNamespaces: several "hosts" on one machine, for tests of what happens between hosts. No
// libtorch.
//
// A host is a network namespace with a host name of its own, an address in 10.77.0.0/24 on eth0,
// and a cable to a switch (a bridge in one more namespace). The namespaces have no names in the
// file system and hold no address of this machine's own: they are gone with the object, and with
// this process in whatever way it ends, once no process runs inside. What the hosts do not have of
// their own are files, processes and the clock.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::testing {

// Not thread-safe.
class NetworkNamespaces {
 public:
  // Why they cannot be had here (not root, no ip(8), a kernel or container that forbids them); "":
  // they can. For GTEST_SKIP().
  static std::string unavailable();

  // 1 to 200 hosts. Throws SystemError, LaunchError.
  explicit NetworkNamespaces(int hosts);
  // SIGKILL to what still runs inside, and the namespaces are gone.
  ~NetworkNamespaces();
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  int size() const { return static_cast<int>(hosts_.size()); }
  // "10.77.0.1" for host 0, "10.77.0.2" for host 1, ...
  std::string address(int host) const;
  // The host's name, "host0", ...; resolves nowhere.
  std::string name(int host) const;

  // The words to put before a command so that it runs on `host`. They hold while the object lives.
  std::vector<std::string> prefix(int host) const;
  // The same as text for a shell.
  std::string shell_prefix(int host) const;
  // Moves the thread that calls it to `host`; also in a fork of this process, which may have closed
  // the descriptors. It holds while the object lives, and throws SystemError.
  std::function<void()> entrance(int host) const;
  // Runs fn in a thread of this process that is on `host`, and waits for it; sockets that it makes
  // are that host's, also afterwards. Passes exceptions on.
  void on(int host, const std::function<void()>& fn) const;

  // Pulls the host's cable: what is sent is lost, without an error. mend() plugs it in again.
  void cut(int host);
  void mend(int host);
  // Limits the cable of every host, in each direction, by a token bucket: "1gbit", "100mbit".
  // Throws LaunchError where tc(8) or the kernel cannot.
  void shape(const std::string& rate);

  // Bytes that left the host over its cable so far, with all headers.
  uint64_t bytes_sent(int host) const;
  // The processes that are on the host now.
  std::vector<pid_t> processes(int host) const;

 private:
  struct Namespace {
    UniqueFd net;
    UniqueFd uts;
  };
  static Namespace make(const std::string& name);
  static std::vector<std::string> prefix_of(const Namespace& space);
  void run(const Namespace& space, const std::string& script) const;

  Namespace switch_;
  std::vector<Namespace> hosts_;
};

}  // namespace lockstep::inline v0::testing
