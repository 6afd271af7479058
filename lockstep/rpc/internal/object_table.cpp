#include "lockstep/rpc/internal/object_table.h"

#include <algorithm>
#include <utility>

#include "lockstep/rpc/errors.h"

namespace lockstep::inline v0::rpc::internal {

void ObjectTable::tell_that_it_went(const Kept& gone) {
  for (const Ready& ready : gone.waiting)
    ready(nullptr, std::make_exception_ptr(InvalidArgument(
                       "the object went before it was made: no process counts it any more")));
}

// Objects are destroyed without the lock, because their destructors are the user's code.

void ObjectTable::expect(ObjectId id, uint64_t user) {
  std::vector<Then> waited;
  {
    const MutexLock lock(mutex_);
    const auto [at, fresh] = kept_.try_emplace(id);
    if (fresh) at->second.users[user] = 1;
    heard_.try_emplace(user, Deadline::Clock::now());
    for (auto one = unknown_.begin(); one != unknown_.end();) {
      const bool known = one->second.id == id;
      if (known) waited.push_back(std::move(one->second.then));
      one = known ? unknown_.erase(one) : std::next(one);
    }
  }
  for (const Then& then : waited) then(true);
}

void ObjectTable::made(ObjectId id, std::shared_ptr<Object> object, std::exception_ptr error) {
  std::vector<Ready> waiting;
  {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end() || found->second.made) return;  // no user needs it any more
    found->second.made = true;
    found->second.object = object;
    found->second.error = error;
    waiting.swap(found->second.waiting);
  }
  for (const Ready& ready : waiting) ready(object, error);
}

bool ObjectTable::add(ObjectId id, uint64_t user) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(id);
  if (found == kept_.end()) return false;
  ++found->second.users[user];
  heard_.try_emplace(user, Deadline::Clock::now());
  return true;
}

void ObjectTable::release(ObjectId id, uint64_t user, uint64_t times) {
  Kept gone;
  {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end()) return;
    auto& users = found->second.users;
    const auto count = users.find(user);
    if (count == users.end()) return;
    count->second -= std::min(count->second, times);
    if (count->second > 0) return;
    users.erase(count);
    if (!users.empty()) return;
    gone = std::move(found->second);
    kept_.erase(found);
  }
  tell_that_it_went(gone);
}

bool ObjectTable::when_made(ObjectId id, Ready ready) {
  std::shared_ptr<Object> object;
  std::exception_ptr error;
  {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end()) return false;
    if (!found->second.made && !closed_) {
      found->second.waiting.push_back(std::move(ready));
      return true;
    }
    object = found->second.object;
    error = found->second.made
                ? found->second.error
                : std::make_exception_ptr(Cancelled("the agent of an object has ended"));
  }
  ready(object, error);
  return true;
}

uint64_t ObjectTable::when_known(ObjectId id, Then then) {
  bool known = false;
  {
    const MutexLock lock(mutex_);
    known = kept_.contains(id);
    if (!known && !closed_) {
      unknown_[++last_unknown_] = {id, std::move(then)};
      return last_unknown_;
    }
  }
  then(known);
  return 0;
}

void ObjectTable::give_up(uint64_t waiting) {
  Then then;
  {
    const MutexLock lock(mutex_);
    const auto found = unknown_.find(waiting);
    if (found == unknown_.end()) return;
    then = std::move(found->second.then);
    unknown_.erase(found);
  }
  then(false);
}

void ObjectTable::close() {
  std::map<uint64_t, Unknown> unknown;
  std::vector<Ready> waiting;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    unknown.swap(unknown_);
    for (auto& [id, kept] : kept_) {
      for (Ready& ready : kept.waiting) waiting.push_back(std::move(ready));
      kept.waiting.clear();
    }
  }
  for (const auto& [number, one] : unknown) one.then(false);
  const auto ended = std::make_exception_ptr(Cancelled("the agent of an object has ended"));
  for (const Ready& ready : waiting) ready(nullptr, ended);
}

void ObjectTable::heard(uint64_t user, Time now) {
  const MutexLock lock(mutex_);
  const auto found = heard_.find(user);
  if (found != heard_.end()) found->second = std::max(found->second, now);
}

void ObjectTable::doubt(uint64_t user, Time heard_at_least) {
  const MutexLock lock(mutex_);
  const auto found = heard_.find(user);
  if (found != heard_.end()) found->second = std::min(found->second, heard_at_least);
}

std::vector<uint64_t> ObjectTable::drop_silent(Time oldest, uint64_t self) {
  std::vector<uint64_t> silent;
  std::vector<Kept> gone;
  MutexLock lock(mutex_);
  for (auto at = heard_.begin(); at != heard_.end();) {
    const bool drop = at->first != self && at->second < oldest;
    if (drop) silent.push_back(at->first);
    at = drop ? heard_.erase(at) : std::next(at);
  }
  if (silent.empty()) return silent;
  for (auto at = kept_.begin(); at != kept_.end();) {
    for (const uint64_t user : silent) at->second.users.erase(user);
    if (at->second.users.empty()) {
      gone.push_back(std::move(at->second));
      at = kept_.erase(at);
    } else {
      ++at;
    }
  }
  lock.unlock();
  for (const Kept& one : gone) tell_that_it_went(one);
  return silent;
}

size_t ObjectTable::size() const {
  const MutexLock lock(mutex_);
  return kept_.size();
}

}  // namespace lockstep::inline v0::rpc::internal
