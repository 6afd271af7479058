// HashStore: a store inside one process, for ranks that are threads.
#pragma once

#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"
#include "lockstep/store/key_table.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

class LOCKSTEP_API HashStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;
  // It never blocks.
  void offer(const std::string& key, const std::string& value, Deadline) override {
    set(key, value);
  }
  std::optional<std::string> peek(const std::string& key, Deadline) override {
    return try_get(key);
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  KeyTable values_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0
