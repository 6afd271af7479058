// Reformation: how the ranks of a job meet, and meet again after some of them died and were started
// anew. The ranks that are left and those that are new come to the same attempt; one that fails is
// followed by the next, until all ranks have connected in one: a generation. Not a public header.
//
// The protocol, over a store that outlives the ranks, keys of attempt n below "N/":
//   N/here/R    rank R has come: the life of its process
//   N/made/R    it has connected
//   N/outcome   "made", or why the attempt was given up; the first word written is everybody's
// A rank joins the first attempt without an outcome. Whoever finds that a former process of its own
// rank has joined it gives it up, since that process is dead; so does a rank whose connecting failed.
// Attempts are taken one after another, so no two of them can both be made by the same processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

class Reformation {
 public:
  // `life`: differs between all processes that this rank ever has. `has_ended`: whether a rank's process is known to have
  // ended well, so that it will not come; null: none is.
  Reformation(std::shared_ptr<Store> store, int rank, int size, std::string life,
              std::function<bool(int rank)> has_ended = nullptr);

  // Connects this rank in attempt `number`, in `store`, which is new to it, until the deadline at
  // most. An error of this library gives the attempt up.
  using Connect =
      std::function<void(int64_t number, const std::shared_ptr<Store>& store, Deadline deadline)>;

  // Returns once `connect` has succeeded on all ranks in one attempt: its number, equal on all of
  // them, from 1, greater than before; what it made in former attempts is to be replaced. Collective
  // over the job, newcomers included. While it connects, the store's waits end as soon as the attempt
  // is given up. Throws Timeout that names the ranks that have not come, Mismatch that names one that has_ended,
  // StoreError, and InvalidArgument of `connect`.
  int64_t form(const Connect& connect, Deadline deadline);

 private:
  class Attempt;

  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  std::string life_;
  std::function<bool(int rank)> has_ended_;
  int64_t next_ = 1;  // the attempt to look at next
};

}  // namespace lockstep
