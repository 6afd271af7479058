// KeyTable: the values of a store and the rules of its operations, without any waiting or locking.
// All stores share it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

inline constexpr size_t kMaxStoreKey = 4096;                // bytes of a key
inline constexpr size_t kMaxStoreValue = size_t{64} << 20;  // bytes of a value

// Throw InvalidArgument that names the key when it exceeds the store's limits (store.h).
LOCKSTEP_API void check_store_key(const std::string& key);
LOCKSTEP_API void check_store_value(const std::string& key, const std::string& value);

// The error of a wait for a missing key.
LOCKSTEP_API Timeout missing_key(const std::string& key, Deadline deadline);

// Thread-safety: one thread at a time.
class LOCKSTEP_API KeyTable {
 public:
  // The value, or nullptr.
  const std::string* find(const std::string& key) const;
  // The first of `keys` that does not exist, or nullptr.
  const std::string* first_missing(std::span<const std::string> keys) const;

  void set(const std::string& key, std::string value);  // in place of a former value
  bool remove(const std::string& key);                  // whether it was there
  // The sum that Store::add() would store; changes nothing.
  // Throws: StoreError.
  int64_t sum(const std::string& key, int64_t delta) const;
  // Whether Store::compare_set() would set the key.
  bool matches(const std::string& key, const std::string& expected) const;
  void clear() { values_.clear(); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace lockstep::inline v0
