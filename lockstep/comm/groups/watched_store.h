// WatchedStore: a store whose waits end early when a callback finds a reason. Not a public header.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

class WatchedStore final : public Store {
 public:
  // `look` throws the error that ends a wait. It is called ten times a second during a wait, and no
  // more often by try_get(), for callers that ask the store now and then during another wait.
  WatchedStore(std::shared_ptr<Store> base, std::function<void()> look);

  // From now on it behaves as the underlying store.
  void stop_looking() noexcept { looks_ = false; }

  void set(const std::string& key, const std::string& value) override { base_->set(key, value); }
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override { return base_->add(key, delta); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return base_->compare_set(key, expected, desired);
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override { return base_->remove(key); }
  void offer(const std::string& key, const std::string& value, Deadline answer) override {
    base_->offer(key, value, answer);
  }
  std::optional<std::string> peek(const std::string& key, Deadline answer) override {
    return base_->peek(key, answer);
  }

 private:
  template <typename Wait>
  auto by_pieces(Deadline deadline, const Wait& wait);

  std::shared_ptr<Store> base_;
  std::function<void()> look_;
  std::atomic<bool> looks_{true};
  std::atomic<std::chrono::steady_clock::time_point> looked_;
};

}  // namespace lockstep::inline v0
