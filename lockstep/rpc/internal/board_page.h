// BoardPage: long-pending calls of this process on the call board, for the flight recorder. Not a
// public header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/ticks.h"
#include "lockstep/rpc/agent_options.h"
#include "lockstep/rpc/pending.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::rpc::internal {

// A call that may be shown.
struct ShownCall {
  PendingCall call;
  Deadline::Clock::time_point begun;
  std::shared_ptr<BoardPlace> place;  // of the call, which it keeps alive
};

// Thread-safety: any thread.
class BoardPage {
 public:
  // Uses the board of the agent that launched this process, if there is one.
  BoardPage();
  bool there() const { return board_.has_value(); }
  // Shows those of the calls that are not shown yet, as far as there is room.
  void show(const std::vector<ShownCall>& calls);
  // The call has ended, and is not shown any more. It may be in a list for show().
  void over(BoardPlace& place) noexcept;

 private:
  std::optional<trace::CallBoard> board_;
  int rank_ = 0;  // this process's place on the board
  const Deadline::Clock::time_point started_ = Deadline::Clock::now();
  const uint64_t started_ticks_ = ticks();
  Mutex mutex_;
};

}  // namespace lockstep::inline v0::rpc::internal
