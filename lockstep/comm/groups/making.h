// Making: ranks that make an engine, or anything else, together through a store learn at once when
// one of them fails, and why. Not a public header.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/groups/watched_store.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// Another rank has reported that it failed: its number and the reason.
class RankFailed final : public PeerLost {
 public:
  RankFailed(int rank, const std::string& why);
};

// One rank's part in the making, which lasts as long as the object.
class Making {
 public:
  // `store` is used for this alone. `rank` is the number by which the others know this rank.
  Making(std::shared_ptr<Store> store, int rank);
  ~Making() { watched_->stop_looking(); }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  // The store to meet in. Its waits end with RankFailed when another rank fails.
  std::shared_ptr<Store> store() const { return watched_; }

  // Called while an exception that ends this rank's part is handled. Reports this rank's own
  // failure to the others and rethrows it. A PeerLost is replaced by RankFailed, if the rank that
  // caused it reports so within half a second. Late ranks are left to the deadlines.
  [[noreturn]] void fail();

 private:
  static std::optional<RankFailed> reported(Store& store);

  std::shared_ptr<Store> store_;
  std::shared_ptr<WatchedStore> watched_;
  int rank_;
};

// Runs make(store) as this rank's part. Once it returns, the store's waits no longer look for
// failures.
template <typename Make>
auto make_together(std::shared_ptr<Store> store, int rank, const Make& make) {
  Making making(std::move(store), rank);
  try {
    return make(making.store());
  } catch (...) {
    making.fail();
  }
}

}  // namespace lockstep::inline v0
