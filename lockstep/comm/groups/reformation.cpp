#include "lockstep/comm/groups/reformation.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/comm/groups/pauses.h"
#include "lockstep/comm/groups/watched_store.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {
namespace {

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

// Waits until the ranks of the job are there. Returns false if the attempt has been given up.
// Throws: Timeout, Mismatch.
bool Reformation::meet(Attempt& attempt, Deadline deadline) const {
  Pauses pauses;
  std::vector<int> missing(static_cast<size_t>(size_));
  std::iota(missing.begin(), missing.end(), 0);
  while (true) {
    std::erase_if(missing, [&](int r) { return attempt.word_of(r).has_value(); });
    if (missing.empty()) return true;
    if (attempt.outcome()) return false;
    refuse_ended(attempt, missing);
    if (deadline.expired()) {
      attempt.give_up("rank " + std::to_string(rank_) + " waited no longer");
      throw Timeout("the ranks of the job are to meet again, but rank " + joined(missing, ", ") +
                    " did not come within " + seconds_text(deadline) +
                    "; it hangs, or was not started again");
    }
    pauses.pause();
  }
}

void Reformation::refuse_ended(Attempt& attempt, const std::vector<int>& missing) const {
  std::vector<int> ended;
  std::copy_if(missing.begin(), missing.end(), std::back_inserter(ended),
               [this](int rank) { return has_ended_ && has_ended_(rank); });
  if (ended.empty()) return;
  const std::string ranks = "rank " + joined(ended, ", ");
  attempt.give_up(ranks + " had ended");
  throw Mismatch("the ranks of the job are to meet again, but " + ranks +
                 (ended.size() == 1 ? " has" : " have") + " ended, and will not come");
}

Reformation::Reformation(std::shared_ptr<Store> store, int rank, int size, std::string life,
                         std::function<bool(int rank)> has_ended)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      life_(std::move(life)),
      has_ended_(std::move(has_ended)) {}

int64_t Reformation::form(const Connect& connect, Deadline deadline) {
  Deadline::Duration patience = kFirstPatience;
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  while (true) {
    const int64_t number = next_;
    const auto base = std::make_shared<PrefixStore>(std::to_string(number), store_);
    Attempt attempt(base, rank_);
    ++next_;
    if (attempt.outcome()) continue;
    if (attempt.announce(life_) != life_) {
      attempt.give_up("rank " + std::to_string(rank_) + " was started again meanwhile");
      continue;
    }
    if (!meet(attempt, deadline)) continue;
    const Deadline limit = Deadline::after(std::min(patience, deadline.remaining()));
    patience *= 2;
    // Waits in this store end when the attempt ends.
    auto store =
        std::make_shared<WatchedStore>(std::make_shared<PrefixStore>("world", base), [&attempt] {
          if (const auto end = attempt.outcome(); end && *end != Attempt::kMade)
            throw GivenUp(*end);
        });
    std::string outcome;
    try {
      connect(number, store, limit);
      outcome = attempt.agree(
          all, limit, [](const std::vector<int>&) { return ""; },
          [](const std::string& missing) { return missing + " did not connect"; });
    } catch (const StoreError&) {
      throw;
    } catch (const InvalidArgument& error) {
      attempt.give_up("rank " + std::to_string(rank_) + ": " + error.what());
      throw;
    } catch (const Error& error) {
      outcome = attempt.give_up("rank " + std::to_string(rank_) + ": " + error.what());
    }
    store->stop_looking();
    if (outcome == Attempt::kMade) return number;
    if (deadline.expired())
      throw Timeout("the ranks of the job met again, but could not connect within " +
                    seconds_text(deadline) + "; the last try: " + outcome);
  }
}

}  // namespace lockstep::inline v0
