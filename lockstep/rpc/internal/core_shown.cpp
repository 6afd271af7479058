// The part of Core that reports pending calls to people, now and in the flight recorder.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "lockstep/core/ticks.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/internal/inbound_call.h"

namespace lockstep::rpc::internal {
namespace {

constexpr auto kShownAfter = std::chrono::seconds(1);

}  // namespace

std::vector<Agent::PendingCall> Core::pending_calls() const {
  const auto now = Deadline::Clock::now();
  const auto age = [&](Deadline::Clock::time_point begun) {
    return std::chrono::duration<double>(now - begun).count();
  };
  std::vector<Agent::PendingCall> all;
  for (const PendingPtr& call : calls_.list())
    all.push_back({false, call->peer.str(), call->function.str(), age(call->begun)});
  {
    const MutexLock lock(mutex_);
    for (const InboundCall* one : serving_)
      all.push_back({true, one->link()->peer().name, one->function().name, age(one->begun())});
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return all;
}

uint64_t Core::show(bool incoming, const std::string& function, const std::string& peer,
                    Deadline::Clock::time_point begun) noexcept {
  trace::CallRecord record;
  record.moving = incoming ? 4 : 3;
  const std::string_view op = incoming ? "serves" : "rpc";
  op.copy(record.op, sizeof record.op - 1);
  std::snprintf(record.note, sizeof record.note, incoming ? "'%s' of '%s'" : "'%s' on '%s'",
                function.c_str(), peer.c_str());
  // Ticks have their own rate, which is known from the time since the start.
  const auto now = Deadline::Clock::now();
  const double ago =
      std::chrono::duration<double>(now - begun) / std::chrono::duration<double>(now - started_);
  record.begun =
      ticks() - static_cast<uint64_t>(ago * static_cast<double>(ticks() - started_ticks_));
  return board_->begin(board_rank_, record);
}

void Core::show_pending() {
  if (stopped()) return;
  const auto now = Deadline::Clock::now();
  const auto old = now - kShownAfter;
  struct One {
    Deadline::Clock::time_point begun;
    Pending* call;
    InboundCall* served;
  };
  std::vector<One> all;
  const std::vector<PendingPtr> calls = calls_.list();
  for (const PendingPtr& call : calls)
    if (call->begun <= old) all.push_back({call->begun, call.get(), nullptr});
  {
    const MutexLock lock(mutex_);
    for (InboundCall* one : serving_)
      if (one->begun() <= old) all.push_back({one->begun(), nullptr, one});
    // The oldest come first, since the board has limited room.
    std::sort(all.begin(), all.end(), [](const One& a, const One& b) { return a.begun < b.begun; });
    for (const auto& [begun, call, served] : all) {
      bool& shown = call ? call->shown : served->shown;
      if (shown || (call && call->state().done())) continue;
      const uint64_t number =
          call ? show(false, call->function.str(), call->peer.str(), begun)
               : show(true, served->function().name, served->link()->peer().name, begun);
      if (number == trace::CallBoard::kNoRoom) break;  // free again after others have ended
      (call ? call->board_call : served->board_call) = number;
      shown = true;
    }
  }
  reactor_->at(now + kShownAfter, task_of([weak = weak_from_this()] {
                 if (const auto core = weak.lock()) core->show_pending();
               }));
}

}  // namespace lockstep::rpc::internal
