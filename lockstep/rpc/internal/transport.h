// Transport: authenticated connections between named processes, for messages. It does not know
// about functions.
//
// A process listens on a Unix socket of its host (abstract, of a random name) and on TCP, and
// writes both into the store under its name with a random number, its incarnation. A caller
// connects over the Unix socket on the same host (host_identity()), otherwise over TCP. A link
// belongs to the process that made it: requests go forth, responses back; the other direction makes
// a link of its own. Both ends prove the job's secret (wire/challenge.h) before anything else is
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/link.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/peer.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::rpc::internal {

struct TransportOptions {
  std::string name;  // 1 to 200 printable bytes; unique among living processes
  // Numeric address for TCP; beyond loopback only where a job has several hosts.
  std::string listen = "127.0.0.1";
  // Acts as if every other process were on another host: TCP, and no reading of memory.
  bool alone = false;
  LinkLimits limits = {};
  // Bytes of freed receive buffers that are kept for the next large tensors.
  size_t kept_bytes = size_t{512} << 20;
};

class Transport {
 public:
  // Listens and writes its entry into the store (keys begin with "rpc/"); connecting peers wait for
  // start(). The reactor and the store outlive it. Throws InvalidArgument (a living process has the
  // name: its listener answers), SystemError, StoreError.
  Transport(Reactor& reactor, std::shared_ptr<Store> store, const Secret& secret,
            TransportOptions options, Deadline deadline);
  // Handlers are called from now on. Call it once, before anything except self(). Throws
  // SystemError.
  void start(LinkHandlers handlers);
  // Removes its name from the store if it is still its own, and closes everything.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const Peer& self() const;
  // The link to the process that has this name now. It is made when there is none, or when the last
  // one was lost: then the store is asked again, so that a process that came back under its name is
  // found. Waits until the deadline for a process that is not there (yet). Concurrent callers share
  // one attempt. `only`: this incarnation; PeerLost at once where it is gone, instead of waiting
  // for another. Must not be called on the leader, since it waits. Throws Timeout ("'ps' has not
  // come", "is gone since ..."), PeerLost, StoreError, and SystemError at once for an address that
  // can never be reached.
  std::shared_ptr<Link> link_to(const std::string& name, Deadline deadline, uint64_t only = 0);
  // Returns the link to that process if it exists and is alive; never waits.
  std::shared_ptr<Link> living_link_to(const std::string& name) const;

  // Whether a link with this very process is alive, whichever end made it.
  bool has_link_with(uint64_t incarnation) const;

  // Connections refused (wrong secret, nonsense) since the start, for tests and the doctor.
  uint64_t refused() const;

  // Closes the listeners and all links; all handlers have returned when it returns.
  void close(const std::string& why);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0::rpc::internal
