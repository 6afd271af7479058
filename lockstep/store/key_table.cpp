#include "lockstep/store/key_table.h"

#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void check_store_key(const std::string& key) {
  if (key.empty()) throw InvalidArgument("a store's key must not be empty");
  if (key.size() > kMaxStoreKey) {
    throw InvalidArgument("store key '" + key.substr(0, 40) + "...' has " +
                          std::to_string(key.size()) + " bytes; at most " +
                          std::to_string(kMaxStoreKey) + " are allowed");
  }
}

void check_store_value(const std::string& key, const std::string& value) {
  if (value.size() > kMaxStoreValue) {
    throw InvalidArgument("the value of store key '" + key + "' has " +
                          std::to_string(value.size()) + " bytes; at most " +
                          std::to_string(kMaxStoreValue) +
                          " are allowed (send tensors through a Communicator)");
  }
}

Timeout missing_key(const std::string& key, Deadline deadline) {
  std::ostringstream what;
  what << "store key '" << key << "' was not set within " << deadline.timeout_seconds()
       << " s; the process that should set it is late, gone, or was never started";
  return Timeout(what.str());
}

const std::string* KeyTable::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const std::string* KeyTable::first_missing(std::span<const std::string> keys) const {
  for (const std::string& key : keys) {
    if (find(key) == nullptr) return &key;
  }
  return nullptr;
}

void KeyTable::set(const std::string& key, std::string value) {
  values_.insert_or_assign(key, std::move(value));
}

bool KeyTable::remove(const std::string& key) {
  return values_.erase(key) > 0;
}

int64_t KeyTable::sum(const std::string& key, int64_t delta) const {
  const std::string* text = find(key);
  if (text == nullptr) return delta;
  const auto value = parse_int(*text);
  int64_t sum = 0;
  if (!value || __builtin_add_overflow(*value, delta, &sum)) {
    throw StoreError("add(" + std::to_string(delta) + ") to store key '" + key +
                     "': its value is not an integer, or the sum leaves 64 bits (it has " +
                     std::to_string(text->size()) + " bytes: '" + text->substr(0, 32) + "')");
  }
  return sum;
}

bool KeyTable::matches(const std::string& key, const std::string& expected) const {
  const std::string* value = find(key);
  return value == nullptr ? expected.empty() : *value == expected;
}

}  // namespace lockstep::inline v0
