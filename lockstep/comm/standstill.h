// Standstill: ranks that wait for each other in different groups, and so for ever. No engine can
// see that: each has its own group, and in that one a rank is only late. So a rank that stands
// still says in the job's store where, and looks where the ranks stand that it waits for. Not a
// public header.
//
// What makes it certain: every rank of the circle stands in the same wait at two looks in a row,
// and at least one of them has not called what another waits for, nor will it, since its only
// thread is in that wait. Ranks that use communicators from several threads are not judged. That a
// second thread is about to make its first call cannot be known: of a group that a rank has never
// called this is thought of it only after half a minute.
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

namespace lockstep {

// Where a rank stands. Ranks are those of the job.
struct Standing {
  uint64_t wait = 0;         // counts the waits of the rank; another one once anything moved
  uint64_t looks = 0;        // counts what the rank has said
  double seconds = 0;        // that the wait has lasted
  std::string group;         // the one that it waits in
  uint64_t number = 0;       // the collective of that group that it waits for
  std::vector<int> awaited;  // without whom that cannot go on
  std::map<std::string, uint64_t> called;  // collectives of each of its groups, so far
  std::string text;                        // the call, for people
  // What was found, and which waits of which ranks it is about.
  std::string verdict;
  std::map<int, uint64_t> judged;
};

std::string encode(const Standing& standing);
// nullopt for what encode() did not make.
std::optional<Standing> parse_standing(const std::string& text);

// The ranks, in order, of a circle in which `rank` waits for others that wait for it in another
// call; empty if there is none. Pure.
std::vector<int> find_circle(int rank, const std::map<int, Standing>& standings);

// One rank's. From one thread at a time.
class Standstill {
 public:
  // `store` is the same for all ranks of the job.
  Standstill(std::shared_ptr<Store> store, int rank);

  // `own` but for the counters: this rank has stood there for a while; `moved`: something did, since
  // it said so last. What is wrong, for a Mismatch; "": nothing that is known. Does not throw; takes
  // no longer than some tenths of a second, whatever became of the store, but where something is
  // wrong, until the others have heard it.
  std::string look(Standing own, bool moved) noexcept;
  // When to look next: soon where the last look saw a circle that is not certain yet.
  std::chrono::milliseconds pause() const { return pause_; }

 private:
  std::string judge(const Standing& own);
  std::string pronounce(const Standing& own, const Standing& judge);
  std::optional<Standing> read(int rank, Deadline deadline);

  std::shared_ptr<Store> store_;  // null once it does not answer
  int rank_;
  uint64_t waits_ = 0;
  uint64_t looks_ = 0;
  std::chrono::milliseconds pause_{0};
  std::string last_;                // where it stood
  std::map<int, Standing> before_;  // what the others said at the last look
};

}  // namespace lockstep
