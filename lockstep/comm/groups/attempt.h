// Attempt: one try of some ranks to make something together, as each of them sees it. They agree
// through a store which of them are there and how the try ended. Communicator::shrink() and
// Reformation try by it. Not a public header.
//
// The keys:
//   here/R    rank R has arrived: what it says of itself
//   made/R    its part is made
//   outcome   "made", or why the attempt was given up; the first word written applies to all
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// Thread-safety: one thread. Throws: StoreError.
class Attempt {
 public:
  static constexpr const char* kMade = "made";

  // `store` is used for this attempt alone.
  Attempt(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

  // Null while it is not decided.
  std::optional<std::string> outcome() { return store_->try_get("outcome"); }
  // Ends the attempt, unless that has happened. Returns how it ended.
  std::string give_up(const std::string& why) { return store_->compare_set("outcome", "", why); }

  // Announces this rank. Returns what it had said before, if it was announced; otherwise `word`.
  std::string announce(const std::string& word) {
    return store_->compare_set(here(rank_), "", word);
  }
  // The word that a rank has announced itself with; nullopt: it has not come.
  std::optional<std::string> word_of(int rank) { return store_->try_get(here(rank)); }

  // Announces that this rank's part is made, and waits for the others' of `members`. `hopeless` is
  // asked about the ranks that are missing, and says why they will not come; empty: they may.
  // `late` says that they had not at the deadline.
  // Returns "made", or why the attempt was given up; the same on all members.
  std::string agree(const std::vector<int>& members, Deadline deadline,
                    const std::function<std::string(const std::vector<int>& missing)>& hopeless,
                    const std::function<std::string(const std::string& missing)>& late);

 private:
  static std::string here(int rank) { return "here/" + std::to_string(rank); }
  static std::string made(int rank) { return "made/" + std::to_string(rank); }

  std::shared_ptr<Store> store_;
  int rank_;
};

}  // namespace lockstep::inline v0
