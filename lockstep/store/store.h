// Store: a small key-value service by which the processes of a job find each other.
//
// Keys and values are byte strings: keys of 1 to 4,096 bytes, values of up to 64 MiB. set(), add()
// and compare_set() create keys.
// Thread-safety: several threads of a process, unless an implementation says otherwise; a waiting
// thread does not block the others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

class LOCKSTEP_API Store {
 public:
  virtual ~Store() = default;

  // Sets `key`, replacing an earlier value.
  // Throws: StoreError.
  virtual void set(const std::string& key, const std::string& value) = 0;

  // The value of `key`; waits until the key exists.
  // Throws: Timeout that names the key, StoreError.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;

  // The value of `key` now, or nullopt. Does not wait for the key.
  // Throws: StoreError.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;

  // Adds `delta` to the decimal integer at `key` (0 if absent), stores and returns the sum. Atomic
  // among all processes.
  // Throws: StoreError if the value is not an integer.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;

  // If `key` has the value `expected` (absent counts as ""), sets it to `desired`. Returns the
  // value afterwards: `desired` on success, the other one otherwise. Atomic among all processes.
  // Throws: StoreError.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;

  // Waits until every key exists.
  // Throws: Timeout that names a missing key, StoreError.
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;

  // Removes `key`; true if it existed.
  // Throws: StoreError.
  virtual bool remove(const std::string& key) = 0;

  // set() and try_get() for callers that must not wait long: a store that does not respond, such as
  // one with a stopped server, blocks the caller until `answer` at most. Throw Timeout then, and
  // StoreError where a store cannot guarantee that.
  virtual void offer(const std::string& key, const std::string& value, Deadline answer);
  virtual std::optional<std::string> peek(const std::string& key, Deadline answer);
};

// A barrier of `size` participants under `name`: each call returns once all have called with that
// name, so a name serves one barrier.
// Throws: Timeout that says how many arrived.
LOCKSTEP_API void store_barrier(Store& store, const std::string& name, int size, Deadline deadline);

}  // namespace lockstep::inline v0
