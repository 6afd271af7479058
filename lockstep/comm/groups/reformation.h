// Reformation: how the ranks of a job meet, and meet again after some of them died and were
// replaced. The survivors and the replacements join the same attempt. A failed attempt is followed
// by the next, until all ranks have connected in one: a generation. Not a public header.
//
// The protocol uses a store that outlives the ranks. Attempt n has its keys below "N/" (attempt.h);
// a rank says of itself the life of its process, and its part is made when it has connected.
// A rank joins the first attempt without an outcome. A rank gives an attempt up if it finds that a
// former process of its own has joined it, since that process is dead, or if its own connecting
// failed. Attempts are taken one after another, so no two of them can both be made by the same
// processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/groups/attempt.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

class Reformation {
 public:
  // `life`: differs between all processes that this rank ever has. `has_ended`: whether a rank's
  // process is known to have exited successfully, so that it will not arrive; null: unknown for all
  // ranks.
  Reformation(std::shared_ptr<Store> store, int rank, int size, std::string life,
              std::function<bool(int rank)> has_ended = nullptr);

  // Connects this rank in attempt `number`, through `store`, which is new to it, before the
  // deadline. A Lockstep error gives the attempt up.
  using Connect =
      std::function<void(int64_t number, const std::shared_ptr<Store>& store, Deadline deadline)>;

  // Returns once `connect` has succeeded on all ranks in one attempt. The result is its number:
  // equal on all ranks, from 1, and rising from call to call. What `connect` made in former
  // attempts must be replaced. While it connects, the store's waits end as soon as the attempt is
  // given up.
  // Collective: all ranks of the job, replacements included.
  // Throws: Timeout that names the missing ranks, Mismatch that names one that has_ended,
  // StoreError, and InvalidArgument from `connect`.
  int64_t form(const Connect& connect, Deadline deadline);

 private:
  bool meet(Attempt& attempt, Deadline deadline) const;
  void refuse_ended(Attempt& attempt, const std::vector<int>& missing) const;

  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  std::string life_;
  std::function<bool(int rank)> has_ended_;
  int64_t next_ = 1;  // the attempt to look at next
};

}  // namespace lockstep::inline v0
