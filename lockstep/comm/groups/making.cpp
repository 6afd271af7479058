#include "lockstep/comm/groups/making.h"

#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/exception_text.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kFailedKey = "failed";  // the first rank that failed, and why
// A rank that fails closes its connections first, and then reports why. A rank that was killed
// reports nothing, and no other can report for it: the wait for its report is then in vain.
constexpr auto kLastWord = std::chrono::milliseconds(500);

}  // namespace

RankFailed::RankFailed(int rank, const std::string& why)
    : PeerLost("rank " + std::to_string(rank) + " could not join the group: " + why, rank) {}

Making::Making(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {
  watched_ = std::make_shared<WatchedStore>(store_, [store = store_] {
    if (const auto failed = reported(*store)) throw *failed;
  });
}

std::optional<RankFailed> Making::reported(Store& store) {
  const auto text = store.try_get(kFailedKey);
  if (!text) return std::nullopt;
  const size_t space = text->find(' ');
  const auto rank = parse_int(text->substr(0, space), 0);
  if (!rank || space == std::string::npos) return std::nullopt;
  return RankFailed(static_cast<int>(*rank), text->substr(space + 1));
}

void Making::fail() {
  try {
    throw;
  } catch (const RankFailed&) {
    throw;
  } catch (const Timeout&) {
    throw;
  } catch (const PeerLost&) {
    std::optional<RankFailed> failed;
    try {
      store_->get(kFailedKey, Deadline::after(kLastWord));
      failed = reported(*store_);
    } catch (const Timeout&) {     // it reported nothing, like a killed process
    } catch (const StoreError&) {  // then the report is lost
    }
    if (failed) throw *failed;
    throw;
  } catch (...) {
    try {
      const std::string why = exception_text(std::current_exception());
      store_->compare_set(kFailedKey, "",
                          std::to_string(rank_) + " " + why.substr(0, why.find('\n')));
    } catch (const std::exception&) {  // the store cannot be reached
    }
    throw;
  }
}

}  // namespace lockstep::inline v0
