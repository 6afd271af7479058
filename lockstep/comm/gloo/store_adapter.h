// StoreAdapter: a Lockstep store as c10d sees one. Not a public header.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "lockstep/store/store.h"

namespace lockstep {

class StoreAdapter final : public c10d::Store {
 public:
  StoreAdapter(std::shared_ptr<lockstep::Store> store, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreAdapter>(store_, getTimeout());
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, text(value));
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return bytes(store_->compare_set(key, text(expected), text(desired)));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return bytes(store_->get(key, Deadline::after(getTimeout())));
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->remove(key); }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!store_->try_get(key)) return false;
    }
    return true;
  }
  int64_t getNumKeys() override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a Lockstep store does not count its keys");
  }
  void wait(const std::vector<std::string>& keys) override {
    store_->wait(keys, Deadline::after(getTimeout()));
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, Deadline::after(timeout));
  }

 private:
  static std::string text(const std::vector<uint8_t>& value) {
    return {value.begin(), value.end()};
  }
  static std::vector<uint8_t> bytes(const std::string& value) {
    return {value.begin(), value.end()};
  }

  std::shared_ptr<lockstep::Store> store_;
};

}  // namespace lockstep
