#include "lockstep/comm/groups/watched_store.h"

#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPiece = std::chrono::milliseconds(100);

}  // namespace

WatchedStore::WatchedStore(std::shared_ptr<Store> base, std::function<void()> look)
    : base_(std::move(base)), look_(std::move(look)), looked_(Clock::now()) {}

template <typename Wait>
auto WatchedStore::by_pieces(Deadline deadline, const Wait& wait) {
  while (looks_ && deadline.remaining() > kPiece) {
    try {
      return wait(Deadline::after(kPiece));
    } catch (const Timeout&) {
      look_();
    }
  }
  return wait(deadline);
}

std::string WatchedStore::get(const std::string& key, Deadline deadline) {
  return by_pieces(deadline, [&](Deadline piece) { return base_->get(key, piece); });
}

std::optional<std::string> WatchedStore::try_get(const std::string& key) {
  if (const auto now = Clock::now(); looks_ && now - looked_.load() > kPiece) {
    looked_ = now;
    look_();
  }
  return base_->try_get(key);
}

void WatchedStore::wait(std::span<const std::string> keys, Deadline deadline) {
  by_pieces(deadline, [&](Deadline piece) { base_->wait(keys, piece); });
}

}  // namespace lockstep::inline v0
