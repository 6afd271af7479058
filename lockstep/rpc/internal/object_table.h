// ObjectTable: the objects that this process owns, and who has references to them. Not a public header.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/rref.h"

namespace lockstep::rpc::internal {

// For all threads. A user is a process, by its incarnation; this process is one as well. An object stays while a user
// counts it.
class ObjectTable {
 public:
  using Time = Deadline::Clock::time_point;
  // Called once with the object, or with what making it threw.
  using Ready =
      std::function<void(const std::shared_ptr<Object>& object, std::exception_ptr error)>;
  using Then = std::function<void(bool known)>;

  // An object that is being made for `user`, who counts it once. Nothing where it is known.
  void expect(ObjectId id, uint64_t user);
  // It has been made, or could not be; who waits is told, by this thread.
  void made(ObjectId id, std::shared_ptr<Object> object, std::exception_ptr error);
  // `user` counts it once more; false: there is no such object (any more).
  bool add(ObjectId id, uint64_t user);
  // `user` counts it so many times less.
  void release(ObjectId id, uint64_t user, uint64_t times);
  // Calls `ready` once the object is there, at once where it is, or false: there is none.
  bool when_made(ObjectId id, Ready ready);
  // Calls `then` once, when somebody expects the object: at once where it is known, -> 0; else -> a number for give_up().
  uint64_t when_known(ObjectId id, Then then);
  // Who waits to know is told that there is none. Nothing where he waits no longer.
  void give_up(uint64_t waiting);
  // Nothing is expected or made any more: all who wait are told so.
  void close();

  // The user was heard at `now`.
  void heard(uint64_t user, Time now);
  // The user's process seems to have ended: it is dropped unless heard before `until`.
  void doubt(uint64_t user, Time heard_at_least);
  // Drops all that users count who were heard last before `oldest`; -> who.
  std::vector<uint64_t> drop_silent(Time oldest, uint64_t self);

  size_t size() const;

 private:
  struct Kept {
    bool made = false;
    std::shared_ptr<Object> object;
    std::exception_ptr error;
    std::map<uint64_t, uint64_t> users;
    std::vector<Ready> waiting;
  };
  static void tell_that_it_went(const Kept& gone);

  mutable Mutex mutex_;
  std::map<ObjectId, Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<uint64_t, Time> heard_ LOCKSTEP_GUARDED_BY(mutex_);
  struct Unknown {
    ObjectId id;
    Then then;
  };
  std::map<uint64_t, Unknown> unknown_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t last_unknown_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::rpc::internal
