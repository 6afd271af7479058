// TcpBackend: ranks on any hosts over Lockstep's own TCP connections, each authenticated with a
// secret.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/tcp/schedule.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

namespace tcp {
class Engine;
}

struct TcpOptions {
  int rank = 0;
  int size = 1;
  bool one_host = true;  // all ranks are on this host: nothing leaves the loopback interface
  // The interface to use, or its address; "": LOCKSTEP_INTERFACE, otherwise any that reaches the
  // peers.
  std::string interface = {};
  tcp::ScheduleSizes sizes = {};
};

// Connects the ranks. `store` is used by this group alone, with a prefix of its own, and only
// during this call.
// Collective: all ranks call it.
// Throws: Timeout that names the missing ranks, InvalidArgument, StoreError, SystemError.
std::unique_ptr<tcp::Engine> make_tcp_engine(Store& store, const TcpOptions& options,
                                             Deadline deadline);

class TcpBackend final : public Backend {
 public:
  explicit TcpBackend(std::unique_ptr<tcp::Engine> engine);
  ~TcpBackend() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::unique_ptr<Request> start(const Call& call) override;
  void progress() override;
  void set_siblings(SiblingProgress* siblings) override;
  bool lost(int rank) const override;
  Probe probe(int src, int tag) override;
  void abort(const Breakage& why) noexcept override;
  void interrupt(const Breakage& why) noexcept override;

  // Payload bytes that this rank has sent to `peer` so far.
  uint64_t payload_sent(int peer) const;

 private:
  Capabilities capabilities_;
  std::unique_ptr<tcp::Engine> engine_;
  std::vector<int> everybody_;
};

std::unique_ptr<TcpBackend> make_tcp_backend(Store& store, const TcpOptions& options,
                                             Deadline deadline);

}  // namespace lockstep::inline v0
