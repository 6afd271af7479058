// StoreView: a store of c10d as Lockstep sees one.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::python {

// As private, and as safe among threads, as the store that it views.
class StoreView final : public lockstep::Store {
 public:
  explicit StoreView(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    guarded("set", key, [&] { store_->set(key, bytes(value)); });
  }
  std::string get(const std::string& key, Deadline deadline) override {
    wait({&key, 1}, deadline);
    return guarded("get", key, [&] { return text(store_->get(key)); });
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return guarded("get", key, [&]() -> std::optional<std::string> {
      if (!store_->check({key})) return std::nullopt;
      return text(store_->get(key));
    });
  }
  int64_t add(const std::string& key, int64_t delta) override {
    return guarded("add", key, [&] { return store_->add(key, delta); });
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return guarded("compare_set", key,
                   [&] { return text(store_->compareSet(key, bytes(expected), bytes(desired))); });
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    for (const std::string& key : keys) {
      // A time-out of 0 would mean for ever.
      const auto left =
          std::max(std::chrono::milliseconds(1),
                   std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
      try {
        store_->wait({key}, left);
      } catch (const std::exception& error) {
        if (deadline.expired()) {
          throw Timeout("the group's store has no key '" + key + "' after " +
                        std::to_string(deadline.timeout_seconds()) +
                        " s; a rank is late or has ended");
        }
        throw StoreError("the group's store: wait for '" + key + "': " + first_line(error));
      }
    }
  }
  bool remove(const std::string& key) override {
    return guarded("remove", key, [&] { return store_->deleteKey(key); });
  }

 private:
  static std::string text(const std::vector<uint8_t>& value) {
    return {value.begin(), value.end()};
  }
  static std::vector<uint8_t> bytes(const std::string& value) {
    return {value.begin(), value.end()};
  }
  static std::string first_line(const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  template <typename F>
  static auto guarded(const char* what, const std::string& key, F f) -> decltype(f()) {
    try {
      return f();
    } catch (const std::exception& error) {
      throw StoreError(std::string("the group's store: ") + what + " '" + key +
                       "': " + first_line(error));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::inline v0::python
