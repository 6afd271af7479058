// JoinedAgent: an agent that another one leads.
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/agent_channel.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"

namespace lockstep::launch {

class JoinedAgent final : public Peers {
 public:
  // Connects to the first agent through the store at `endpoint`, and introduces itself. Throws
  // Timeout, StoreError.
  JoinedAgent(const LaunchOptions& options, const HostPort& endpoint, Deadline deadline);

  void watch(PollSet& polls) override;
  void tell(const AgentMessage& message) override;
  bool left() override;

  // Why the first agent does not let this one join; "": it does, or has not answered.
  const std::string& refusal() const { return refusal_; }
  // The first agent is gone.
  bool lost() const { return lost_; }

 private:
  void take_messages();
  void lose(const std::string& how);

  const LaunchOptions& options_;
  const NodesOptions& nodes_;
  const HostPort endpoint_;
  PortReservation master_port_;
  AgentChannel leader_;
  Time heard_;
  Time next_beat_;
  std::string refusal_;
  bool lost_ = false;
};

}  // namespace lockstep::launch
