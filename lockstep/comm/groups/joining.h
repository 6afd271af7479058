// Joining: the steps of a rank through init(). The call board shows them to the agent, and the
// job's store shows them to the other ranks: when a rank does not arrive, the ranks that gave up
// name it and where it was seen last. Not a public header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {

// The step of a rank, as it writes it to the store.
struct JoiningPlace {
  int step = 0;  // from 1; all ranks take the same steps
  int pid = 0;
  std::string host = {};  // equal on the ranks of one host
  std::string what = {};  // "connecting over gloo"
  bool gave_up = false;   // it has stopped waiting
  int late = -1;          // the rank that it waited for, as far as it knew
};
std::string encode(const JoiningPlace& place);
std::optional<JoiningPlace> decode_joining_place(const std::string& text);

// The rank that holds up this one, and the reason in words; -1 and "" where unknown.
struct JoiningBlame {
  int rank = -1;
  std::string text = {};
};
// Pure. `places` by rank, nullopt: the rank has not arrived; `self` is this rank. `stopped_by` asks
// the system about a process of this host (core/process_state.h).
JoiningBlame blame_for_joining(const std::vector<std::optional<JoiningPlace>>& places, size_t self,
                               const std::function<std::string(int pid)>& stopped_by);

class Joining {
 public:
  using AtStep = std::function<void(const std::string& step)>;

  // `at_step` is called at each step, for tests.
  Joining(std::shared_ptr<trace::CallBoard> board, int board_rank, AtStep at_step);

  // From now on the other ranks see the steps too. `served_by`: the rank whose process serves the
  // store; -1: a process that outlives all ranks.
  void meet_in(std::shared_ptr<Store> store, int rank, int size, int served_by);
  void step(const std::string& what);
  // The rank has joined.
  void done();

  // Called while an exception that ends init() is handled. Rethrows Timeout and PeerLost with what
  // the store knows of the late ranks, and other exceptions as they are. Waits for at most some 2
  // s.
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

}  // namespace lockstep::inline v0
