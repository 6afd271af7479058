// AloneAgent: the agent of a job on one host.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/launch/leader.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::launch {

class AloneAgent final : public Peers {
 public:
  // The first generation starts at once.
  // Throws: LaunchError, SystemError.
  AloneAgent(const LaunchOptions& options, Console& err);

  void watch(PollSet& polls) override;
  bool left() override { return true; }
  const Secret& secret() const override { return secret_; }

 private:
  void say(const AgentMessage& message) override;
  void complete(NodePlan& plan) override;
  void dispatch(const Leader::Sends& sends);

  const LaunchOptions& options_;
  Console& err_;
  Leader leader_;
  // Every generation has its own store, secret and port.
  Secret secret_;
  std::unique_ptr<TcpStoreServer> store_;
  std::optional<PortReservation> master_port_;
};

}  // namespace lockstep::inline v0::launch
