#include "lockstep/launch/rendezvous.h"

#include <algorithm>

namespace lockstep::inline v0::launch {

Rendezvous decide_rendezvous(const NodesOptions& options, const std::string& host,
                             const std::string& address, const std::vector<InterfaceAddress>& all) {
  using Server = NodesOptions::Server;
  const bool mine = interface_of(all, address).has_value() || is_loopback(address);
  Rendezvous result;
  result.must_serve = options.server == Server::kThis;
  result.may_serve = result.must_serve || (options.server == Server::kWhoeverCan && mine);
  if (!options.interface.empty()) {
    result.listen = candidate_addresses(all, options.interface).front();
  } else if (host == "localhost" || (mine && (!is_loopback(address) || host == address))) {
    result.listen = address;
  } else {
    result.listen = address.find(':') == std::string::npos ? "0.0.0.0" : "::";
  }
  return result;
}

}  // namespace lockstep::inline v0::launch
