#include "lockstep/comm/internal/group_maker.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/local/lone_device.h"
#include "lockstep/comm/groups/making.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {
namespace {

// Remembers the keys below `below` that this rank wrote, so that they can be removed: a job that
// keeps making groups must not fill its store.
class RecordingStore final : public Store {
 public:
  RecordingStore(std::shared_ptr<Store> base, std::string below)
      : base_(std::move(base)), below_(std::move(below)) {}

  void set(const std::string& key, const std::string& value) override {
    note(key);
    base_->set(key, value);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return base_->get(key, deadline);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return base_->try_get(key);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    note(key);
    return base_->add(key, delta);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    note(key);
    return base_->compare_set(key, expected, desired);
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    base_->wait(keys, deadline);
  }
  bool remove(const std::string& key) override { return base_->remove(key); }

  void remove_written() {
    std::set<std::string> keys;
    {
      const MutexLock lock(mutex_);
      keys.swap(keys_);
    }
    for (const std::string& key : keys) base_->remove(key);
  }

 private:
  void note(const std::string& key) {
    if (!key.starts_with(below_)) return;
    const MutexLock lock(mutex_);
    keys_.insert(key);
  }

  std::shared_ptr<Store> base_;
  std::string below_;
  Mutex mutex_;  // engines may use threads
  std::set<std::string> keys_ LOCKSTEP_GUARDED_BY(mutex_);
};

class ProcessGroups final : public GroupMaker {
 public:
  ProcessGroups(EngineRequest job, std::shared_ptr<Store> store, std::shared_ptr<void> keep)
      : job_(std::move(job)),
        keep_(std::move(keep)),
        store_(store ? std::move(store) : std::make_shared<HashStore>()) {}

  Engines make(const std::string& name, const Topology& topology, const std::vector<int>& members,
               Deadline deadline) override {
    // Only these engines, and the host's engine beside them, are known not to use the store later.
    const bool all = job_.backend == "shm" || job_.backend == "peer" || job_.backend == "tcp" ||
                     is_hierarchical(job_.backend) || job_.backend == "gloo";
    const auto store = std::make_shared<RecordingStore>(std::make_shared<PrefixStore>(name, store_),
                                                        all ? "" : "host/");
    {
      const MutexLock lock(mutex_);
      written_[name] = store;
    }
    EngineRequest request = job_;
    request.topology = topology;
    request.members = members;
    return make_together(store, topology.rank, [&](std::shared_ptr<Store> meeting) {
      return make_engines(request, std::move(meeting), deadline);
    });
  }

  void settle(const std::string& name) noexcept override {
    try {
      std::shared_ptr<RecordingStore> recorder;
      {
        const MutexLock lock(mutex_);
        const auto it = written_.find(name);
        if (it == written_.end()) return;
        recorder = std::move(it->second);
        written_.erase(it);
      }
      recorder->remove_written();
    } catch (const std::exception&) {
      // The store has ended, and the keys with it.
    }
  }

  Store& store() override { return *store_; }

 private:
  EngineRequest job_;
  std::shared_ptr<void> keep_;  // must outlive store_
  std::shared_ptr<Store> store_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<RecordingStore>> written_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The first member of a group that arrives makes the engines of all; each takes its own.
class LocalGroups final : public GroupMaker {
 public:
  explicit LocalGroups(std::optional<at::Device> device) : device_(device) {}

  Engines make(const std::string& name, const Topology& topology, const std::vector<int>&,
               Deadline) override {
    const MutexLock lock(mutex_);
    std::vector<std::unique_ptr<Backend>>& engines = groups_[name];
    if (engines.empty()) engines = make_local_backends(topology.size);
    std::unique_ptr<Backend> own = std::move(engines[static_cast<size_t>(topology.rank)]);
    if (!device_) return {.own = std::move(own)};
    return {.own = make_lone_device_backend(*device_), .host = std::move(own)};
  }

  void settle(const std::string& name) noexcept override {
    const MutexLock lock(mutex_);
    groups_.erase(name);
  }

  Store& store() override { return store_; }

 private:
  const std::optional<at::Device> device_;
  HashStore store_;
  Mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Backend>>> groups_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<int> in_job(const GroupOrigin& origin, const std::vector<int>& ranks) {
  std::vector<int> result;
  result.reserve(ranks.size());
  for (const int r : ranks) result.push_back(origin.members[static_cast<size_t>(r)]);
  return result;
}

std::shared_ptr<GroupOrigin> origin_of_group(const GroupOrigin& parent, std::string name,
                                             const std::vector<int>& members) {
  auto origin = std::make_shared<GroupOrigin>(GroupOrigin{.maker = parent.maker,
                                                          .name = std::move(name),
                                                          .members = in_job(parent, members),
                                                          .progress = parent.progress});
  if (parent.titles.empty()) return origin;
  for (const int rank : members) origin->titles.push_back(parent.titles[static_cast<size_t>(rank)]);
  return origin;
}

std::shared_ptr<GroupMaker> make_process_groups(EngineRequest job, std::shared_ptr<Store> store,
                                                std::shared_ptr<void> keep) {
  return std::make_shared<ProcessGroups>(std::move(job), std::move(store), std::move(keep));
}

std::shared_ptr<GroupMaker> make_local_groups() {
  return std::make_shared<LocalGroups>(std::nullopt);
}

std::shared_ptr<GroupMaker> make_lone_groups(c10::Device device) {
  return std::make_shared<LocalGroups>(device);
}

}  // namespace lockstep::inline v0
