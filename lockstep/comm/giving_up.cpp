#include "lockstep/comm/giving_up.h"

#include "lockstep/comm/failure.h"
#include "lockstep/core/errors.h"

namespace lockstep {

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
  } catch (...) {  // its own doing, or everybody's
  }
}

}  // namespace lockstep
