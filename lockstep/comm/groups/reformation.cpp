#include "lockstep/comm/groups/reformation.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/comm/groups/pauses.h"
#include "lockstep/comm/groups/watched_store.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

constexpr const char* kMade = "made";
// When an attempt begins to connect, all ranks are present, so a short time suffices; an attempt in
// which a rank died must not delay the next. The time doubles with each attempt, because a machine
// may just be busy.
constexpr Deadline::Duration kFirstPatience = std::chrono::seconds(1);

// "0.3 s".
std::string seconds_text(Deadline deadline) {
  std::ostringstream text;
  text << deadline.timeout_seconds() << " s";
  return text.str();
}

// The attempt that this rank waits in has been given up.
class GivenUp : public Error {
 public:
  using Error::Error;
};

}  // namespace

// One attempt, seen from one rank.
class Reformation::Attempt {
 public:
  Attempt(std::shared_ptr<Store> store, int rank, int size,
          const std::function<bool(int rank)>& has_ended)
      : store_(std::move(store)), rank_(rank), size_(size), has_ended_(has_ended) {}

  std::optional<std::string> outcome() { return store_->try_get("outcome"); }
  std::string give_up(const std::string& why) { return store_->compare_set("outcome", "", why); }

  // Returns false if a former process of this rank was here.
  bool announce(const std::string& life) {
    return store_->compare_set(here(rank_), "", life) == life;
  }

  // Returns true once all ranks are present, and false if the attempt has been given up. Throws
  // Timeout, Mismatch.
  bool meet(Deadline deadline) {
    Pauses pauses;
    std::vector<bool> came(static_cast<size_t>(size_), false);
    while (true) {
      const std::vector<int> missing = without(came, "here/");
      if (missing.empty()) return true;
      if (outcome()) return false;
      refuse_ended(missing);
      if (deadline.expired()) {
        give_up("rank " + std::to_string(rank_) + " waited no longer");
        throw Timeout("the ranks of the job are to meet again, but rank " + joined(missing, ", ") +
                      " did not come within " + seconds_text(deadline) +
                      "; it hangs, or nobody has started it again");
      }
      pauses.pause();
    }
  }

  // Announces that this rank has connected. Returns "made", or why not; the result is equal on all
  // ranks.
  std::string agree(Deadline deadline) {
    store_->set("made/" + std::to_string(rank_), "1");
    Pauses pauses;
    std::vector<bool> made(static_cast<size_t>(size_), false);
    while (true) {
      if (const auto known = outcome()) return *known;
      const std::vector<int> missing = without(made, "made/");
      if (missing.empty()) return give_up(kMade);
      if (deadline.expired()) return give_up("rank " + joined(missing, ", ") + " did not connect");
      pauses.pause();
    }
  }

 private:
  void refuse_ended(const std::vector<int>& missing) {
    std::vector<int> ended;
    std::copy_if(missing.begin(), missing.end(), std::back_inserter(ended),
                 [this](int rank) { return has_ended_ && has_ended_(rank); });
    if (ended.empty()) return;
    const std::string who = "rank " + joined(ended, ", ");
    give_up(who + " had ended");
    throw Mismatch("the ranks of the job are to meet again, but " + who +
                   (ended.size() == 1 ? " has" : " have") +
                   " ended, with exit code 0, and will not come");
  }
  static std::string here(int rank) { return "here/" + std::to_string(rank); }
  // Returns the ranks that have no key `prefix`R yet; `known` holds those that had one at the last
  // look.
  std::vector<int> without(std::vector<bool>& known, const std::string& prefix) {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<size_t>(r);
      if (!known[i]) known[i] = store_->try_get(prefix + std::to_string(r)).has_value();
      if (!known[i]) ranks.push_back(r);
    }
    return ranks;
  }

  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  const std::function<bool(int rank)>& has_ended_;
};

Reformation::Reformation(std::shared_ptr<Store> store, int rank, int size, std::string life,
                         std::function<bool(int rank)> has_ended)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      life_(std::move(life)),
      has_ended_(std::move(has_ended)) {}

int64_t Reformation::form(const Connect& connect, Deadline deadline) {
  Deadline::Duration patience = kFirstPatience;
  while (true) {
    const int64_t number = next_;
    const auto base = std::make_shared<PrefixStore>(std::to_string(number), store_);
    Attempt attempt(base, rank_, size_, has_ended_);
    ++next_;
    if (attempt.outcome()) continue;
    if (!attempt.announce(life_)) {
      attempt.give_up("rank " + std::to_string(rank_) + " was started again meanwhile");
      continue;
    }
    if (!attempt.meet(deadline)) continue;
    const Deadline limit = Deadline::after(std::min(patience, deadline.remaining()));
    patience *= 2;
    // Waits in this store end when the attempt ends.
    auto store =
        std::make_shared<WatchedStore>(std::make_shared<PrefixStore>("world", base), [&attempt] {
          if (const auto end = attempt.outcome(); end && *end != kMade) throw GivenUp(*end);
        });
    std::string outcome;
    try {
      connect(number, store, limit);
      outcome = attempt.agree(limit);
    } catch (const StoreError&) {
      throw;
    } catch (const InvalidArgument& error) {
      attempt.give_up("rank " + std::to_string(rank_) + ": " + error.what());
      throw;
    } catch (const Error& error) {
      outcome = attempt.give_up("rank " + std::to_string(rank_) + ": " + error.what());
    }
    store->stop_looking();
    if (outcome == kMade) return number;
    if (deadline.expired())
      throw Timeout("the ranks of the job met again, but could not connect within " +
                    seconds_text(deadline) + "; the last try: " + outcome);
  }
}

}  // namespace lockstep
