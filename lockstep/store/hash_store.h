// HashStore: a store inside one process, for ranks that are threads.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/store/key_table.h"
#include "lockstep/store/store.h"

namespace lockstep {

class HashStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable values_;  // guarded by mutex_
};

}  // namespace lockstep
