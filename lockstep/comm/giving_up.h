// What a rank whose communicator broke says: on the call board, whether it only waited for others in vain, so that the
// agent does not take it for the cause; and in its error, who that is in the job. Not a public header.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "lockstep/trace/call_board.h"

namespace lockstep {

// `error`: what broke it; says something for Timeout and PeerLost only. `members`: the ranks of the
// communicator by their ranks in the job; empty: they are the same.
void show_giving_up(trace::CallBoard& board, int board_rank, const std::exception_ptr& error,
                    const std::vector<int>& members) noexcept;

// A PeerLost or a late rank's Timeout, of the same type and with the same rank, whose text says besides which rank of the
// job that is, and how it is called: "; rank 1 of this group is rank 3 of the job (data 1, tensor 1)". The error itself
// where it names none, and where the communicator has the job's numbers and no titles.
std::exception_ptr named_in_job(const std::exception_ptr& error, const std::vector<int>& members,
                                const std::vector<std::string>& titles) noexcept;

}  // namespace lockstep
