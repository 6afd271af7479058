#include "lockstep/store/hash_store.h"

#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep {

void HashStore::set(const std::string& key, const std::string& value) {
  check_store_key(key);
  check_store_value(key, value);
  {
    const std::lock_guard lock(mutex_);
    values_.set(key, value);
  }
  changed_.notify_all();
}

std::string HashStore::get(const std::string& key, Deadline deadline) {
  // The value is read under the lock that saw it appear: nobody can remove it in between.
  check_store_key(key);
  std::unique_lock lock(mutex_);
  const std::string* value = nullptr;
  if (!changed_.wait_until(lock, deadline.time(),
                           [&] { return (value = values_.find(key)) != nullptr; })) {
    throw missing_key(key, deadline);
  }
  return *value;
}

std::optional<std::string> HashStore::try_get(const std::string& key) {
  check_store_key(key);
  const std::lock_guard lock(mutex_);
  const std::string* value = values_.find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

int64_t HashStore::add(const std::string& key, int64_t delta) {
  check_store_key(key);
  int64_t sum = 0;
  {
    const std::lock_guard lock(mutex_);
    sum = values_.sum(key, delta);
    values_.set(key, std::to_string(sum));
  }
  changed_.notify_all();
  return sum;
}

std::string HashStore::compare_set(const std::string& key, const std::string& expected,
                                   const std::string& desired) {
  check_store_key(key);
  check_store_value(key, desired);
  {
    const std::lock_guard lock(mutex_);
    if (!values_.matches(key, expected)) {
      const std::string* value = values_.find(key);
      return value == nullptr ? std::string() : *value;
    }
    values_.set(key, desired);
  }
  changed_.notify_all();
  return desired;
}

void HashStore::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) check_store_key(key);
  std::unique_lock lock(mutex_);
  const std::string* missing = nullptr;
  if (!changed_.wait_until(lock, deadline.time(),
                           [&] { return (missing = values_.first_missing(keys)) == nullptr; })) {
    throw missing_key(*missing, deadline);
  }
}

bool HashStore::remove(const std::string& key) {
  check_store_key(key);
  const std::lock_guard lock(mutex_);
  return values_.remove(key);
}

}  // namespace lockstep
