// Decides where the first agent listens, and which agent is the first. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/interfaces.h"
#include "lockstep/launch/launch_options.h"

namespace lockstep::inline v0::launch {

struct Rendezvous {
  bool may_serve = false;   // this agent tries to be the first
  bool must_serve = false;  // and there is no other
  std::string listen;       // the numeric address on which it then listens
};

// `host` is the endpoint's, "" where there is none; `address` is its resolution here; `all` are the
// addresses of this host.
//
// The first agent listens where the endpoint points to. A name that resolves to loopback on its own
// host (Debian's /etc/hosts says 127.0.1.1) is meant for other hosts, and so is an address that
// this host does not know (a translated one): both mean every address. An interface that the user
// chose restricts it.
Rendezvous decide_rendezvous(const NodesOptions& options, const std::string& host,
                             const std::string& address, const std::vector<InterfaceAddress>& all);

}  // namespace lockstep::inline v0::launch
