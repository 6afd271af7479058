// StoreAdapter: presents a Lockstep store as a c10d store. Not a public header.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

class StoreAdapter final : public c10d::Store {
 public:
  StoreAdapter(std::shared_ptr<lockstep::Store> store, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  // The PeerLost that the store has thrown, here or in a clone; null: none. c10d keeps only its
  // text.
  std::exception_ptr lost() const { return *lost_; }

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<StoreAdapter>(store_, getTimeout());
    copy->lost_ = lost_;
    return copy;
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, text(value));
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return bytes(store_->compare_set(key, text(expected), text(desired)));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return noted([&] { return bytes(store_->get(key, Deadline::after(getTimeout()))); });
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->remove(key); }
  bool check(const std::vector<std::string>& keys) override {
    return noted([&] {
      for (const std::string& key : keys) {
        if (!store_->try_get(key)) return false;
      }
      return true;
    });
  }
  int64_t getNumKeys() override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a Lockstep store does not count its keys");
  }
  void wait(const std::vector<std::string>& keys) override {
    noted([&] { store_->wait(keys, Deadline::after(getTimeout())); });
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    noted([&] { store_->wait(keys, Deadline::after(timeout)); });
  }

 private:
  template <typename Ask>
  auto noted(const Ask& ask) -> decltype(ask()) {
    try {
      return ask();
    } catch (const PeerLost&) {
      *lost_ = std::current_exception();
      throw;
    }
  }

  static std::string text(const std::vector<uint8_t>& value) {
    return {value.begin(), value.end()};
  }
  static std::vector<uint8_t> bytes(const std::string& value) {
    return {value.begin(), value.end()};
  }

  std::shared_ptr<lockstep::Store> store_;
  std::shared_ptr<std::exception_ptr> lost_ = std::make_shared<std::exception_ptr>();
};

}  // namespace lockstep::inline v0
