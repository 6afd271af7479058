// CallBoard: a page of shared memory on which each local rank shows what it is doing, so that the
// agent can say what a rank was in when it died, even by SIGKILL, and peers can say what a late
// rank is in.
//
// The agent makes the board and its workers inherit the descriptor (LOCKSTEP_BOARD_FD). A rank
// writes only its own record; anybody may read all. Each rank has two copies of its record and a
// counter that says which one is current, so a reader never blocks a writer, retries when it was
// overtaken, and finds the last whole record even when the writer was killed half way through the
// next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::launch {

// What a rank shows. Plain data, fixed size: no pointers, it crosses processes.
struct BoardRecord {
  uint64_t sequence = 0;  // of the call on its communicator, from 1; 0: none yet
  uint32_t state = 0;     // 0: none, 1: inside, 2: done
  uint32_t pid = 0;
  char call[160] = {};  // "all_reduce sum float32 x 421642 at ddp.cpp:120", NUL-terminated
};

class CallBoard {
 public:
  // A new board for `ranks` local ranks, in a sealed memfd.
  static CallBoard create(int ranks);
  // Maps the board that the agent left in LOCKSTEP_BOARD_FD; nullopt when there is none or it is
  // not a board.
  static std::optional<CallBoard> inherit(const EnvLookup& env);

  CallBoard(CallBoard&&) noexcept;
  CallBoard& operator=(CallBoard&&) noexcept;
  ~CallBoard();

  int ranks() const;
  int fd() const;  // owned by the board; close-on-exec is set, the agent clears it for its workers

  // Publishes this rank's record. One writer a rank; costs a copy of the record, no system call.
  // Does nothing for a rank that the board does not have.
  void publish(int local_rank, const BoardRecord& record) noexcept;
  // A consistent copy of the rank's record; an empty one before the first publish() and for ranks
  // that the board lacks.
  BoardRecord read(int local_rank) const noexcept;

 private:
  struct Mapping;
  explicit CallBoard(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace lockstep::launch
