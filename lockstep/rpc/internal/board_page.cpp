#include "lockstep/rpc/internal/board_page.h"

#include <chrono>
#include <cstdio>
#include <string_view>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::rpc::internal {

BoardPage::BoardPage() : board_(trace::CallBoard::inherit(process_env())) {
  if (board_)
    rank_ = static_cast<int>(env_int(process_env(), "LOCAL_RANK", 0, INT32_MAX).value_or(0));
}

void BoardPage::show(const std::vector<ShownCall>& calls) {
  const auto now = Deadline::Clock::now();
  const MutexLock lock(mutex_);
  for (const auto& [call, begun, place] : calls) {
    if (place->state != BoardPlace::kNone) continue;
    trace::CallRecord record;
    record.moving = call.incoming ? 4 : 3;
    const std::string_view op = call.incoming ? "serves" : "rpc";
    op.copy(record.op, sizeof record.op - 1);
    std::snprintf(record.note, sizeof record.note, call.incoming ? "'%s' of '%s'" : "'%s' on '%s'",
                  call.function.c_str(), call.peer.c_str());
    // Ticks have their own rate, which is known from the time since the start.
    const double ago =
        std::chrono::duration<double>(now - begun) / std::chrono::duration<double>(now - started_);
    record.begun =
        ticks() - static_cast<uint64_t>(ago * static_cast<double>(ticks() - started_ticks_));
    place->number = board_->begin(rank_, record);
    if (place->number == trace::CallBoard::kNoRoom) return;  // free again after others have ended
    place->state = BoardPlace::kShown;
  }
}

void BoardPage::over(BoardPlace& place) noexcept {
  if (!board_) return;
  const MutexLock lock(mutex_);
  if (place.state == BoardPlace::kShown) board_->end(rank_, place.number, ticks());
  place.state = BoardPlace::kOver;
}

}  // namespace lockstep::inline v0::rpc::internal
