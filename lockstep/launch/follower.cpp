#include "lockstep/launch/follower.h"

#include <utility>

namespace lockstep::inline v0::launch {
namespace {

using Kind = AgentMessage::Kind;

AgentMessage about(Kind kind, int generation) {
  AgentMessage message;
  message.kind = kind;
  message.generation = generation;
  return message;
}

}  // namespace

Follower::Follower(AgentMessage join) : join_(std::move(join)) {}

Follower::Step Follower::on_message(const AgentMessage& message) {
  Step step;
  if (state_ == State::kOver) return step;
  const bool running = state_ == State::kRunning && message.generation == seen();
  switch (message.kind) {
    case Kind::kRefused:
      if (state_ == State::kJoining) refusal_ = message.text;
      break;
    case Kind::kWait:
      if (state_ != State::kJoining && state_ != State::kWaiting) break;
      state_ = State::kWaiting;
      if (!std::exchange(heard_wait_, true)) step.hear.push_back(message);
      break;
    case Kind::kPlan:
      if (message.plan.generation > seen() && state_ != State::kRunning) {
        state_ = State::kReady;
        plan_ = message.plan;
        join_.seen = plan_.generation;
        join_.known = message.known;
        unanswered_.reset();
      } else if (message.plan.generation != seen() || state_ != State::kReady) {
        break;
      }
      step.say.push_back(about(Kind::kReady, seen()));
      break;
    case Kind::kStart:
      if (message.generation != seen()) break;
      if (state_ == State::kReady) {
        state_ = State::kRunning;
        stopped_ = past_end_ = false;
        for (Formation& formation : join_.known)
          formation.begun = formation.begun || formation.generation == seen();
        join_.known = newest_formations(std::move(join_.known), {});
        step.hear.push_back(message);
        step.hear.back().plan = plan_;
      }
      if (state_ == State::kRunning) step.say.push_back(about(Kind::kBeat, seen()));
      break;
    case Kind::kStop:
    case Kind::kStopServices:
      if (state_ == State::kReady && message.generation == seen()) {
        // It was never told to start.
        state_ = State::kEnded;
        unanswered_ = about(Kind::kEnded, seen());
        step.say.push_back(*unanswered_);
      }
      if (!running || stopped_) break;
      // A failure may still follow the end of the service.
      stopped_ = message.kind == Kind::kStop;
      if (!unanswered_ || unanswered_->kind != Kind::kFailed || stopped_) unanswered_.reset();
      step.hear.push_back(message);
      break;
    case Kind::kOver:
      state_ = State::kOver;
      step.hear.push_back(message);
      break;
    case Kind::kWaitInVain:
    case Kind::kStoodStill:
    case Kind::kLeave:
      if (running) step.hear.push_back(message);
      break;
    case Kind::kSignal:
      step.hear.push_back(message);
      break;
    case Kind::kBeat:
      if (state_ == State::kJoining) state_ = State::kWaiting;  // the leader knows this agent
      break;
    default:
      break;
  }
  return step;
}

AgentMessage Follower::tell(AgentMessage message) {
  message.generation = seen();
  message.past_end = past_end_;
  if (message.kind == Kind::kEnded) state_ = State::kEnded;
  const bool to_be_answered =
      message.kind == Kind::kEnded ||
      (!stopped_ && (message.kind == Kind::kFailed || message.kind == Kind::kServed ||
                     message.kind == Kind::kLeave));
  if (to_be_answered) unanswered_ = message;
  return message;
}

AgentMessage Follower::beat() const {
  switch (state_) {
    case State::kJoining:
      return join_;
    case State::kReady:
      return about(Kind::kReady, seen());
    case State::kRunning:
    case State::kEnded: {
      AgentMessage message = unanswered_.value_or(about(Kind::kBeat, seen()));
      message.past_end = past_end_;
      return message;
    }
    default:
      return {};
  }
}

}  // namespace lockstep::inline v0::launch
