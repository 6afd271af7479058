// JoinedAgent: an agent that another agent leads.
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/agent_channel.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"

namespace lockstep::inline v0::launch {

class JoinedAgent final : public Peers {
 public:
  // Connects to the first agent through the store at `endpoint`, and introduces itself.
  // Throws: Timeout, StoreError.
  JoinedAgent(const LaunchOptions& options, const Former& former, const HostPort& endpoint,
              Deadline deadline);

  void watch(PollSet& polls) override;
  bool left() override;
  const Secret& secret() const override { return nodes_.secret; }
  bool may_leave() const override;
  bool may_give_place() const override;
  std::optional<Time> given_up_at() const override;
  bool others_sleep_too() const override;

 private:
  void say(const AgentMessage& message) override;
  void complete(NodePlan& plan) override;
  uint16_t next_port() override;
  void take_messages();
  // `for_good`: it cannot be found again. `silent`: it may still exist, and its ranks may run.
  void lose(const std::string& how, bool for_good = false, bool silent = false);

  const LaunchOptions& options_;
  const NodesOptions& nodes_;
  const HostPort endpoint_;
  std::optional<PortReservation> master_port_;
  AgentChannel leader_;
  Time heard_;
  Time next_beat_;
  bool closed_ = false;
};

}  // namespace lockstep::inline v0::launch
