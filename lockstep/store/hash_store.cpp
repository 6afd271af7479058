#include "lockstep/store/hash_store.h"

#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void HashStore::set(const std::string& key, const std::string& value) {
  check_store_key(key);
  check_store_value(key, value);
  {
    const MutexLock lock(mutex_);
    values_.set(key, value);
  }
  changed_.notify_all();
}

std::string HashStore::get(const std::string& key, Deadline deadline) {
  // The value is read under the lock that saw it appear, so it cannot be removed in between.
  check_store_key(key);
  MutexLock lock(mutex_);
  bool expired = false;
  while (true) {
    if (const std::string* value = values_.find(key)) return *value;
    if (expired) throw missing_key(key, deadline);
    expired = !changed_.wait_until(lock, deadline.time());
  }
}

std::optional<std::string> HashStore::try_get(const std::string& key) {
  check_store_key(key);
  const MutexLock lock(mutex_);
  const std::string* value = values_.find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

int64_t HashStore::add(const std::string& key, int64_t delta) {
  check_store_key(key);
  int64_t sum = 0;
  {
    const MutexLock lock(mutex_);
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
    const MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  bool expired = false;
  while (const std::string* missing = values_.first_missing(keys)) {
    if (expired) throw missing_key(*missing, deadline);
    expired = !changed_.wait_until(lock, deadline.time());
  }
}

bool HashStore::remove(const std::string& key) {
  check_store_key(key);
  const MutexLock lock(mutex_);
  return values_.remove(key);
}

}  // namespace lockstep::inline v0
