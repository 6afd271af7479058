// CallBoard: shared memory in which each local rank records its calls: the flight recorder. The
// agent reads it to report a rank's last call when it died, even by SIGKILL, and peers read it to
// report the call of a late rank.
//
// The agent makes the board and its workers inherit the descriptor (LOCKSTEP_BOARD_FD); a rank
// without an agent makes its own. A rank writes only its own records; any process may read all. A
// rank's last kRecords calls are kept, each with a stamp that says whether it is whole: a reader
// never blocks a writer, and skips records that were overwritten while it read, or were left half
// written by a killed rank. Remote calls have a separate area, so that many pending ones do not
// displace collectives; a pending call stays there, and further ones find no room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0::trace {

// The last call of a rank, as text.
struct BoardRecord {
  uint64_t sequence = 0;  // the call's number on its communicator, from 1; 0: none yet
  uint32_t state = 0;     // 0: none, 1: inside, 2: done
  uint32_t pid = 0;
  std::string call;      // "all_reduce sum float32 x 421642 at ddp.cpp:120"
  std::string step;      // of init(), while it runs: "connecting to the others over tcp"
  bool gave_up = false;  // its communicator broke because another rank was late or gone
  int late = -1;         // that rank's number in the job, as far as it knew
};

// Two readings of a rank's clocks, which convert ticks to time.
struct BoardClock {
  uint64_t ticks = 0;
  int64_t unix_ns = 0;
};

// A call that the board keeps.
struct KeptCall {
  uint64_t number = 0;  // among the rank's calls, from 0
  CallRecord record;
  // ticks(): when the rank began to wait in it. 0: it has not waited, or it came when the call had
  // ended.
  uint64_t waited = 0;
  // ticks(): when it was clear that the call will not end, since its communicator broke or is gone.
  // 0: it has ended, or can still end.
  uint64_t abandoned = 0;

  // Whether it can still end.
  bool under_way() const { return record.ended == 0 && abandoned == 0; }
};

class LOCKSTEP_API CallBoard {
 public:
  static constexpr uint64_t kRecords = 1024;       // of a rank
  static constexpr uint64_t kRemoteRecords = 256;  // separate, of a rank
  static constexpr uint64_t kNoRoom = UINT64_MAX;  // begin()'s result for a remote call

  // The presence of a rank: what the other ranks can still expect of it.
  enum class Presence : uint64_t {
    kAtWork,
    kFinished,     // it reports that it needs no other rank any more
    kAllFinished,  // it has seen that all ranks have finished: none waits for it to recover
    kEnded,        // its process has ended well, as the agent reports
  };

  // A new board for `ranks` local ranks, in a sealed memfd.
  static CallBoard create(int ranks);
  // Maps the board that the agent passed in LOCKSTEP_BOARD_FD; nullopt when there is none or it is
  // not a board.
  static std::optional<CallBoard> inherit(const EnvLookup& env);
  // Maps one that another process holds (/proc/PID/fd), for reading only: no writing function may
  // be called on it. nullopt when it is not a board.
  static std::optional<CallBoard> look(UniqueFd fd);

  CallBoard(CallBoard&&) noexcept;
  CallBoard& operator=(CallBoard&&) noexcept;
  ~CallBoard();

  int ranks() const;  // that have a place on it
  int fd() const;  // owned by the board; close-on-exec is set, the agent clears it for its workers

  // Sets the process that writes as this rank from now on; called before its first begin(). Forgets
  // give_up().
  void enter(int local_rank, uint32_t pid) noexcept;
  // Forgets everything about the rank, whose process has ended, so that another one may enter. For
  // the agent.
  void leave(int local_rank) noexcept;
  // Records a call that begins now; returns the argument of end(). It takes a few tens of
  // nanoseconds and no system call. Does nothing for a rank that the board does not have. kNoRoom:
  // too many remote calls are pending.
  // Thread-safety: any thread of the rank.
  // `waits`: the rank waits in it from the beginning.
  uint64_t begin(int local_rank, const CallRecord& record, bool waits = false) noexcept;
  // Records that the call has ended, at `ticks`. Does nothing for kNoRoom.
  void end(int local_rank, uint64_t call, uint64_t ticks) noexcept;
  // Records that the rank waits in the call from `ticks` on.
  void wait(int local_rank, uint64_t call, uint64_t ticks) noexcept;
  // Records at `ticks` that a call which has not ended will not end: its communicator broke or is
  // gone. Its record says as before that the rank is inside.
  void abandon(int local_rank, uint64_t call, uint64_t ticks) noexcept;

  // Whether this process's communicators look at each of their calls whether its pending ones have
  // ended, so that `ended` is when a call ended and not when the rank came to wait for it. Off at
  // first, as each look asks the engine about every pending call. Counts: each watch_ends(true) is
  // taken back by one watch_ends(false).
  // Thread-safety: any thread.
  void watch_ends(bool on) noexcept;
  bool watches_ends() const noexcept;  // whether anyone has asked for it
  // Whether this process's communicators mark the host's part of their calls for a profiler
  // (device/nvtx.h). Off at first. Counts like watch_ends().
  // Thread-safety: any thread.
  void mark_calls(bool on) noexcept;
  bool marks_calls() const noexcept;  // whether anyone has asked for it

  // The rank's step in init(); "": it has finished. A long text is cut. One thread of the rank
  // calls it.
  void step(int local_rank, std::string_view what) noexcept;
  // The rank waited in vain for the rank `late` of the job (-1: unknown).
  void give_up(int local_rank, int late) noexcept;

  // Holds until leave(); kAtWork at first.
  void set_presence(int local_rank, Presence presence) noexcept;

  // kAtWork for ranks that the board does not have.
  Presence presence(int local_rank) const noexcept;
  // The rank's last call; an empty one before the first and for ranks that the board does not have.
  BoardRecord read(int local_rank) const;
  // The rank's last whole calls, oldest first, followed by the remote ones.
  std::vector<CallRecord> records(int local_rank) const;
  // How many calls the rank has begun, remote ones aside.
  uint64_t calls(int local_rank) const noexcept;
  // The rank's whole calls from number `first` on, as far as they are kept, oldest first; without
  // remote ones. One that another thread is just recording is left out.
  std::vector<KeptCall> calls_from(int local_rank, uint64_t first) const;
  uint32_t pid(int local_rank) const noexcept;
  // When the rank entered.
  BoardClock entered(int local_rank) const noexcept;

 private:
  struct Mapping;
  explicit CallBoard(std::unique_ptr<Mapping> mapping);
  static std::optional<CallBoard> map(UniqueFd fd, bool to_write);
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace lockstep::inline v0::trace
