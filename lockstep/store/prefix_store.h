// PrefixStore: another store's keys under a prefix, so that several users of one store do not
// collide.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

class LOCKSTEP_API PrefixStore final : public Store {
 public:
  // Keys become "<prefix>/<key>". Shares ownership of `base`.
  PrefixStore(std::string prefix, std::shared_ptr<Store> base);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;
  void offer(const std::string& key, const std::string& value, Deadline answer) override;
  std::optional<std::string> peek(const std::string& key, Deadline answer) override;

 private:
  std::string full(const std::string& key) const;

  std::string prefix_;
  std::shared_ptr<Store> base_;
};

}  // namespace lockstep::inline v0
