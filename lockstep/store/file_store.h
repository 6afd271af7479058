// FileStore: a store in one file of a file system that all processes share and that has working POSIX locks. An append-only
// log of records under flock(2). The file is made with mode 0600 and left behind: it must be new for every job.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>

#include "lockstep/core/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep {

class FileStore final : public Store {
 public:
  // Opens or makes the file. Throws StoreError that names the path (not a Lockstep store, no permission, no such folder).
  explicit FileStore(std::filesystem::path path);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;

 private:
  class Lock;
  void catch_up();  // replays records that others appended; needs the file lock
  void append(const std::string& key, const std::optional<std::string>& value);

  std::filesystem::path path_;
  UniqueFd file_;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
  int64_t read_to_ = 0;                        // guarded by mutex_: records before this offset are in values_
};

}  // namespace lockstep
