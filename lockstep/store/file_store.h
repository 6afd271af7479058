// FileStore: a store in one file of a file system that all processes share and that has working
// POSIX locks. An append-only log of records under flock(2). The file is made with mode 0600 and
// left behind: it must be new for every job.
#pragma once

#include <filesystem>

#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/store/key_table.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// A process that dies while it writes leaves a truncated record; the next one to lock the file
// removes it.
class LOCKSTEP_API FileStore final : public Store {
 public:
  // Opens or makes the file.
  // Throws: StoreError that names the path (not a Lockstep store, no permission, no such folder).
  explicit FileStore(std::filesystem::path path);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;
  // Another process holds the lock at most until `answer`; the file system itself may take longer.
  void offer(const std::string& key, const std::string& value, Deadline answer) override;
  std::optional<std::string> peek(const std::string& key, Deadline answer) override;

 private:
  // Holds mutex_ and the file's lock, and has read the records that others appended.
  class Lock;

  void lock_file(Deadline deadline);
  void catch_up() LOCKSTEP_REQUIRES(mutex_);
  void append(const std::string& key, const std::string* value)
      LOCKSTEP_REQUIRES(mutex_);  // nullptr: removed
  // Polls until every key exists; use(values_) is called under the lock that saw them.
  template <typename Use>
  void wait_then(std::span<const std::string> keys, Deadline deadline, Use use);

  const std::filesystem::path path_;
  UniqueFd file_;
  Mutex mutex_;
  KeyTable values_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t read_to_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // records before this offset are in values_
};

}  // namespace lockstep::inline v0
