#include "lockstep/store/prefix_store.h"

#include <utility>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> base)
    : prefix_(std::move(prefix)), base_(std::move(base)) {
  if (base_ == nullptr)
    throw InvalidArgument("PrefixStore '" + prefix_ + "': the base store is null");
}

std::string PrefixStore::full(const std::string& key) const {
  if (key.empty()) throw InvalidArgument("a store's key must not be empty");
  return prefix_ + "/" + key;
}

void PrefixStore::set(const std::string& key, const std::string& value) {
  base_->set(full(key), value);
}

std::string PrefixStore::get(const std::string& key, Deadline deadline) {
  return base_->get(full(key), deadline);
}

std::optional<std::string> PrefixStore::try_get(const std::string& key) {
  return base_->try_get(full(key));
}

int64_t PrefixStore::add(const std::string& key, int64_t delta) {
  return base_->add(full(key), delta);
}

std::string PrefixStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  return base_->compare_set(full(key), expected, desired);
}

void PrefixStore::wait(std::span<const std::string> keys, Deadline deadline) {
  std::vector<std::string> full_keys;
  full_keys.reserve(keys.size());
  for (const std::string& key : keys) full_keys.push_back(full(key));
  base_->wait(full_keys, deadline);
}

void PrefixStore::offer(const std::string& key, const std::string& value, Deadline answer) {
  base_->offer(full(key), value, answer);
}

std::optional<std::string> PrefixStore::peek(const std::string& key, Deadline answer) {
  return base_->peek(full(key), answer);
}

bool PrefixStore::remove(const std::string& key) {
  return base_->remove(full(key));
}

}  // namespace lockstep::inline v0
