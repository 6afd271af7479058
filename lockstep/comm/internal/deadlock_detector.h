// DeadlockDetector: finds ranks that wait for each other in different groups, and so for ever. No
// engine can see this, since each knows its own group, in which a rank is only late. A rank whose
// wait lasts therefore writes to the job's store where it waits, and reads where the ranks wait
// that it needs. Not a public header.
//
// A deadlock is certain when every rank of the circle is in the same wait at two looks in a row,
// and at least one of them has not made the call that another waits for and cannot make it, since
// its only thread is in that wait. Ranks that use communicators from several threads are not
// judged. It cannot be known whether a second thread is about to make its first call: a group that
// a rank has never called is therefore judged only after half a minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// The state of a rank's wait. Ranks are those of the job.
struct WaitState {
  uint64_t wait = 0;         // counts the rank's waits; rises when anything moved
  uint64_t looks = 0;        // counts the rank's reports
  double seconds = 0;        // how long the wait has lasted
  std::string group;         // the group in which it waits
  uint64_t number = 0;       // the collective of that group for which it waits
  std::vector<int> awaited;  // the ranks without which that cannot continue
  // The number of collectives called so far in each of its groups.
  std::map<std::string, uint64_t> called;
  std::string text;  // the call, as text for errors
  // The text of a deadlock that was found, and the waits of the ranks that it is about.
  std::string verdict;
  std::map<int, uint64_t> judged;
};

std::string encode(const WaitState& state);
// Returns nullopt for a text that encode() did not make.
std::optional<WaitState> parse_wait_state(const std::string& text);

// The ranks, in order, of a circle in which `rank` waits for others that wait for it in another
// call; empty if there is none. Pure.
std::vector<int> find_cycle(int rank, const std::map<int, WaitState>& states);

// The detector of one rank.
// Thread-safety: one thread at a time.
class DeadlockDetector {
 public:
  // `store` is the same for all ranks of the job.
  DeadlockDetector(std::shared_ptr<Store> store, int rank);

  // Called when this rank has been in a wait for a while. `own` describes the wait, without the
  // counters; `moved`: whether anything has moved since the last call. Returns the text for a
  // Mismatch, or "" if nothing is known to be wrong. Does not throw. It takes at most some tenths
  // of a second, whatever the state of the store; where it finds a deadlock, it waits until the
  // other ranks have read of it.
  std::string look(WaitState own, bool moved) noexcept;
  // When to look next: soon if the last look saw a circle that is not certain yet.
  std::chrono::milliseconds pause() const { return pause_; }

 private:
  std::string judge(const WaitState& own);
  std::string publish(const WaitState& own, const WaitState& judge);
  std::optional<WaitState> read(int rank, Deadline deadline);

  std::shared_ptr<Store> store_;  // null once it stops answering
  int rank_;
  uint64_t waits_ = 0;
  uint64_t looks_ = 0;
  std::chrono::milliseconds pause_{0};
  std::string last_;                 // the last wait
  std::map<int, WaitState> before_;  // the other ranks' reports at the last look
};

}  // namespace lockstep::inline v0
