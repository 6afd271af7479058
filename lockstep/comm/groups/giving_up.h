// Reports of a rank whose communicator broke. On the call board it tells whether it only waited for
// others in vain, so that the agent does not take it for the cause. In its error it names the lost
// rank by its number in the job. Not a public header.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {

// `error`: the exception that broke the communicator; only Timeout and PeerLost are reported.
// `members`: the ranks of the communicator by their ranks in the job; empty: they are the same.
void show_giving_up(trace::CallBoard& board, int board_rank, const std::exception_ptr& error,
                    const std::vector<int>& members) noexcept;

// Extends the text of a PeerLost, or of a Timeout that knows the late rank, by that rank's number
// in the job and its title: "; rank 1 of this group is rank 3 of the job (data 1, tensor 1)". Type
// and rank stay the same. Returns the error itself where it names no rank, and where the
// communicator has the job's numbers and no titles.
std::exception_ptr named_in_job(const std::exception_ptr& error, const std::vector<int>& members,
                                const std::vector<std::string>& titles) noexcept;

}  // namespace lockstep::inline v0
