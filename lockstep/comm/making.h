// Making: ranks that make an engine, or anything else, together by a store hear at once when one of
// them cannot, and why. Not a public header.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/watched_store.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Another rank has said that it cannot: which, and in words why.
class RankFailed final : public PeerLost {
 public:
  RankFailed(int rank, const std::string& why);
};

// One rank's part in it, which lasts as long as the object.
class Making {
 public:
  // `store` is used for this alone. `rank` as the others count it.
  Making(std::shared_ptr<Store> store, int rank);
  ~Making() { watched_->stop_looking(); }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  // What to meet in: its waits end with RankFailed.
  std::shared_ptr<Store> store() const { return watched_; }

  // To be called while an exception is handled that ends this rank's part. What is its own doing is
  // told to the others and thrown anew; in the place of a lost peer comes RankFailed, where the one
  // that is at the root of it says so within half a second. A late one is left to the deadlines.
  [[noreturn]] void fail();

 private:
  static std::optional<RankFailed> reported(Store& store);

  std::shared_ptr<Store> store_;
  std::shared_ptr<WatchedStore> watched_;
  int rank_;
};

// make(store), as a part of all ranks' making; the result does not look any more.
template <typename Make>
auto make_together(std::shared_ptr<Store> store, int rank, const Make& make) {
  Making making(std::move(store), rank);
  try {
    return make(making.store());
  } catch (...) {
    making.fail();
  }
}

}  // namespace lockstep
