// What a rank whose communicator broke says on the call board: whether it only waited for others in
// vain, so that the agent does not take it for the cause. Not a public header.
#pragma once

#include <exception>
#include <vector>

#include "lockstep/trace/call_board.h"

namespace lockstep {

// `error`: what broke it; says something for Timeout and PeerLost only. `members`: the ranks of the
// communicator by their ranks in the job; empty: they are the same.
void show_giving_up(trace::CallBoard& board, int board_rank, const std::exception_ptr& error,
                    const std::vector<int>& members) noexcept;

}  // namespace lockstep
