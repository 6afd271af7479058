// Joining: the steps of a rank on its way through init(). They are shown on the call board, where
// the agent sees them, and in the job's store, where the other ranks do: when one of them does not
// come, those that gave up say which, and where it was seen last. Not a public header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"
#include "lockstep/trace/call_board.h"

namespace lockstep {

// Where a rank is, as it says in the store.
struct JoiningPlace {
  int step = 0;  // from 1; all ranks take the same ones
  int pid = 0;
  std::string host = {};  // equal on the ranks of one host
  std::string what = {};  // "connecting over gloo"
  bool gave_up = false;   // it waits no longer
  int late = -1;          // for whom it did, as far as it knew
};
std::string encode(const JoiningPlace& place);
std::optional<JoiningPlace> decode_joining_place(const std::string& text);

// Who holds up this rank, and in words why; -1 and "" where that cannot be told.
struct JoiningBlame {
  int rank = -1;
  std::string text = {};
};
// Pure. `places` by rank, nullopt: the rank has not come; `self` is this one's. `stopped_by`: asks
// the system about a process of this host (core/process_state.h).
JoiningBlame blame_for_joining(const std::vector<std::optional<JoiningPlace>>& places, size_t self,
                               const std::function<std::string(int pid)>& stopped_by);

class Joining {
 public:
  using AtStep = std::function<void(const std::string& step)>;

  // `at_step` is called as the rank comes to each step; for tests.
  Joining(std::shared_ptr<trace::CallBoard> board, int board_rank, AtStep at_step);

  // From now on the others are told too. `served_by`: the rank whose process serves the store; -1:
  // somebody outlives them all.
  void meet_in(std::shared_ptr<Store> store, int rank, int size, int served_by);
  void step(const std::string& what);
  // It is through.
  void done();

  // To be called while an exception is handled that ends init(). Timeout and PeerLost are thrown
  // anew, with what the store knows of the late ranks; others as they are. Does not wait for longer
  // than some 2 s.
  [[noreturn]] void fail();

 private:
  void tell_others();
  JoiningBlame ask_store();

  std::shared_ptr<trace::CallBoard> board_;
  int board_rank_;
  AtStep at_step_;
  std::shared_ptr<Store> store_;
  int rank_ = 0;
  int size_ = 1;
  int served_by_ = -1;
  JoiningPlace place_;
};

}  // namespace lockstep
