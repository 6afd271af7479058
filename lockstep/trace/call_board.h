// CallBoard: shared memory in which each local rank records its calls: the flight recorder. The
// agent reads it to say what a rank was in when it died, even by SIGKILL, and peers to say what a
// late rank is in.
//
// The agent makes the board and its workers inherit the descriptor (LOCKSTEP_BOARD_FD); a rank that
// no agent started makes its own. A rank writes only its own records; anybody may read all. A
// rank's last kRecords calls are kept, each with a stamp that says whether it is whole: a reader
// never blocks a writer, and passes over what was overwritten while it read, or was left half
// written by a killed rank. Remote calls have a place of their own, so that many that are pending
// push out no collective; there a call that is pending stays, and further ones find no room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::trace {

// The last call of a rank, in words.
struct BoardRecord {
  uint64_t sequence = 0;  // of the call on its communicator, from 1; 0: none yet
  uint32_t state = 0;     // 0: none, 1: inside, 2: done
  uint32_t pid = 0;
  std::string call;      // "all_reduce sum float32 x 421642 at ddp.cpp:120"
  std::string step;      // of init(), while it is inside: "connecting to the others over tcp"
  bool gave_up = false;  // its communicator broke because another rank did not come, or was gone
  int late = -1;         // which, by its rank in the job, as far as it knew
};

// Two readings of a rank's clocks, to turn ticks into time.
struct BoardClock {
  uint64_t ticks = 0;
  int64_t unix_ns = 0;
};

class CallBoard {
 public:
  static constexpr uint64_t kRecords = 1024;       // of a rank
  static constexpr uint64_t kRemoteRecords = 256;  // of a rank, besides
  static constexpr uint64_t kNoRoom = UINT64_MAX;  // begin()'s, of a remote call

  // What the others can still expect of a rank.
  enum class Presence : uint64_t {
    kAtWork,
    kFinished,  // it says that no other rank needs it any more
    kEnded,     // its process has ended, with 0: the agent says so
  };

  // A new board for `ranks` local ranks, in a sealed memfd.
  static CallBoard create(int ranks);
  // Maps the board that the agent left in LOCKSTEP_BOARD_FD; nullopt when there is none or it is
  // not a board.
  static std::optional<CallBoard> inherit(const EnvLookup& env);
  // Maps one that another process holds (/proc/PID/fd), to read alone: nothing that writes is called on
  // it. nullopt when it is not a board.
  static std::optional<CallBoard> look(UniqueFd fd);

  CallBoard(CallBoard&&) noexcept;
  CallBoard& operator=(CallBoard&&) noexcept;
  ~CallBoard();

  int ranks() const;
  int fd() const;  // owned by the board; close-on-exec is set, the agent clears it for its workers

  // Says who writes as this rank from now on; before its first begin(). Forgets give_up().
  void enter(int local_rank, uint32_t pid) noexcept;
  // Forgets all of the rank, whose process has ended: another one may enter. For the agent.
  void leave(int local_rank) noexcept;
  // Records a call that begins now; returns what end() needs. Any thread of the rank; a few tens of
  // nanoseconds, no system call. Does nothing for a rank that the board does not have. kNoRoom: a
  // remote call, and so many are pending already.
  uint64_t begin(int local_rank, const CallRecord& record) noexcept;
  // That call is over, at `ticks`. Nothing for kNoRoom.
  void end(int local_rank, uint64_t call, uint64_t ticks) noexcept;

  // Where the rank is in init(); "": it is through. A long text is cut. One thread of the rank.
  void step(int local_rank, std::string_view what) noexcept;
  // The rank waited for the rank `late` of the job (-1: for one that it does not know) in vain.
  void give_up(int local_rank, int late) noexcept;

  // Until leave(); kAtWork at first.
  void set_presence(int local_rank, Presence presence) noexcept;

  // kAtWork for ranks that the board lacks.
  Presence presence(int local_rank) const noexcept;
  // The rank's last call; an empty one before the first and for ranks that the board lacks.
  BoardRecord read(int local_rank) const;
  // The rank's last calls that are whole, oldest first; behind them the remote ones.
  std::vector<CallRecord> records(int local_rank) const;
  uint32_t pid(int local_rank) const noexcept;
  // When the rank entered.
  BoardClock entered(int local_rank) const noexcept;

 private:
  struct Mapping;
  explicit CallBoard(std::unique_ptr<Mapping> mapping);
  static std::optional<CallBoard> map(UniqueFd fd, bool to_write);
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace lockstep::trace
