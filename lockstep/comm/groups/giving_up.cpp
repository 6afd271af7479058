#include "lockstep/comm/groups/giving_up.h"

#include <string>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void show_giving_up(trace::CallBoard& board, int board_rank, const std::exception_ptr& error,
                    const std::vector<int>& members) noexcept {
  const auto give_up = [&](int rank) {
    const bool known = rank >= 0 && static_cast<size_t>(rank) < members.size();
    board.give_up(board_rank, known ? members[static_cast<size_t>(rank)] : rank);
  };
  try {
    std::rethrow_exception(error);
  } catch (const LateRank& late) {
    give_up(late.rank());
  } catch (const Timeout&) {
    give_up(-1);
  } catch (const PeerLost& lost) {
    give_up(lost.rank());
  } catch (...) {  // the error is this rank's own, or common to all
  }
}

std::exception_ptr named_in_job(const std::exception_ptr& error, const std::vector<int>& members,
                                const std::vector<std::string>& titles) noexcept {
  const auto addition = [&](int rank) -> std::string {
    if (rank < 0 || static_cast<size_t>(rank) >= members.size()) return "";
    const auto at = static_cast<size_t>(rank);
    if (titles.empty() && members[at] == rank) return "";
    return "; rank " + std::to_string(rank) + " of this group is rank " +
           std::to_string(members[at]) + " of the job" +
           (titles.empty() ? "" : " (" + titles[at] + ")");
  };
  try {
    try {
      std::rethrow_exception(error);
    } catch (const LateRank& late) {
      return std::make_exception_ptr(LateRank(late.what() + addition(late.rank()), late.rank()));
    } catch (const PeerLost& lost) {
      return std::make_exception_ptr(PeerLost(lost.what() + addition(lost.rank()), lost.rank()));
    } catch (...) {
      return error;
    }
  } catch (...) {  // out of memory for more text
    return error;
  }
}

}  // namespace lockstep::inline v0
