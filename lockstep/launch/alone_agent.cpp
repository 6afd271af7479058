#include "lockstep/launch/alone_agent.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;

LeaderOptions leader_options(const LaunchOptions& options) {
  LeaderOptions leader;
  leader.run_id = options.run_id;
  leader.job = to_hex(random_bytes(8));
  leader.on_failure = on_failure_of(options);
  leader.max_restarts = options.max_restarts;
  leader.grace = options.grace;
  leader.stop_grace = options.stop_grace;
  leader.beat = std::chrono::hours(1);  // there are no other agents
  return leader;
}

}  // namespace

AloneAgent::AloneAgent(const LaunchOptions& options, Console& err)
    : Peers(introduction(options, {})),
      options_(options),
      err_(err),
      leader_(leader_options(options), Clock::now()),
      secret_(Secret::generate()) {
  say(beat());
}

void AloneAgent::say(const AgentMessage& message) {
  dispatch(leader_.on_message(Leader::kSelf, message, "", Clock::now()));
}

void AloneAgent::dispatch(const Leader::Sends& sends) {
  for (const Leader::Send& send : sends) {
    if (send.message.kind == AgentMessage::Kind::kStart && !send.message.text.empty() &&
        !options_.quiet)
      err_.put(-2, {send.message.text}, "");
    take(send.message);
  }
}

void AloneAgent::complete(NodePlan& plan) {
  store_.reset();
  master_port_.reset();
  secret_ = Secret::generate();
  store_ = std::make_unique<TcpStoreServer>(HostPort{"127.0.0.1", 0}, secret_);
  master_port_.emplace(options_.master_port);
  plan.master = {options_.master_addr, master_port_->port()};
  plan.store = store_->address();
}

void AloneAgent::watch(PollSet& polls) {
  dispatch(leader_.on_time(Clock::now()));
  if (!leader_.over()) polls.wake_at(leader_.next_time());
}

}  // namespace lockstep::inline v0::launch
