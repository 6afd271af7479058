#include "lockstep/launch/election.h"

#include <algorithm>
#include <utility>

namespace lockstep::inline v0::launch {
namespace {

using Ask = Election::Request::Kind;

}  // namespace

Election::Election(const Options& options, Time now)
    : options_(options), began_(now), ask_at_(now) {}

void Election::look(Time now) {
  standing_ = Standing::kLooking;
  leader_.clear();
  vacant_ = false;
  claim_.reset();
  claimed_.reset();
  ask_at_ = std::max(ask_at_, now);
}

void Election::stand(const std::string& value, Time now) {
  standing_ = Standing::kCandidate;
  value_ = value;
  leader_.clear();
  vacant_ = false;
  ask_at_ = now;
}

void Election::claim(int generation, Time now) {
  if (standing_ != Standing::kLeading || claim_ == generation) return;
  claim_ = generation;
  claimed_.reset();
  ask_at_ = now;
}

void Election::resign(Time now) {
  if (standing_ != Standing::kLeading) return;
  standing_ = Standing::kResigned;
  ask_at_ = now;
}

std::optional<bool> Election::take_claimed(int generation) {
  const auto claimed = std::exchange(claimed_, std::nullopt);
  if (!claimed || claimed->first != generation) return std::nullopt;
  return claimed->second;
}

std::optional<Election::Request> Election::next(Time now) {
  if (asked_ || now < ask_at_ || !hopeless_.empty()) return std::nullopt;
  Request request;
  request.value = value_;
  request.lease = lease_;
  request.revision = revision_;
  switch (standing_) {
    case Standing::kLooking:
      request.kind = Ask::kLook;
      break;
    case Standing::kCandidate:
      request.kind = Ask::kCampaign;
      break;
    case Standing::kLeading:
      // Renews first, because a claim may wait for a long time.
      request.kind = claim_ && now < renew_at_ ? Ask::kClaim : Ask::kKeepAlive;
      request.generation = claim_.value_or(-1);
      break;
    case Standing::kResigned:
      if (lease_ == 0) return std::nullopt;
      request.kind = Ask::kResign;
      break;
    case Standing::kDeposed:
      return std::nullopt;
  }
  asked_ = request;
  return request;
}

void Election::on_answer(const Answer& answer, Time now) {
  const Request asked = std::exchange(asked_, std::nullopt).value_or(Request{});
  ask_at_ = now + options_.pause;
  const bool served = answer.reached && !answer.refused;
  trouble_ = served ? "" : answer.error;
  answered_ = answered_ || served;
  if (asked.kind == Ask::kResign) {
    lease_ = 0;
    return;
  }
  // A service that has worked once is not given up: the job continues without it meanwhile.
  if (!answered_ && (answer.refused || now >= began_ + options_.give_up)) hopeless_ = answer.error;
  if (!served) return;
  newest_ = std::max(newest_, answer.newest);
  switch (standing_) {
    case Standing::kLooking:
      if (asked.kind != Ask::kLook) break;
      leader_ = answer.leader;
      vacant_ = answer.leader.empty();
      break;
    case Standing::kCandidate:
      if (asked.kind != Ask::kCampaign) {
        ask_at_ = now;
      } else if (answer.granted) {
        standing_ = Standing::kLeading;
        lease_ = answer.lease;
        revision_ = answer.revision;
        renew_at_ = now + options_.lease / 3;
        ask_at_ = claim_ ? now : renew_at_;
      } else {
        standing_ = Standing::kDeposed;
      }
      break;
    case Standing::kLeading:
      if (asked.kind == Ask::kClaim && claim_ == asked.generation && answer.granted) {
        claimed_ = {asked.generation, true};
        claim_.reset();
        ask_at_ = renew_at_;
      } else if (asked.kind == Ask::kKeepAlive && answer.granted) {
        renew_at_ = now + options_.lease / 3;
        ask_at_ = claim_ ? now : renew_at_;
      } else if (asked.kind == Ask::kClaim && claim_ == asked.generation &&
                 answer.newest >= asked.generation && answer.revision == revision_) {
        // The number is taken, but the key is still held.
        claimed_ = {asked.generation, false};
        claim_.reset();
        ask_at_ = renew_at_;
      } else {
        // The lease has run out, perhaps unnoticed by others.
        stand(value_, now);
      }
      break;
    case Standing::kDeposed:
    case Standing::kResigned:
      ask_at_ = now;
      break;
  }
}

}  // namespace lockstep::inline v0::launch
