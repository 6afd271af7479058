// ObjectTable: the objects that this process owns, and their users. Not a public header.
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

namespace lockstep::inline v0::rpc::internal {

// A user is a process, by its incarnation; this process is one as well. An object stays while a
// user counts it.
// Thread-safety: any thread.
class ObjectTable {
 public:
  using Time = Deadline::Clock::time_point;
  // Called once with the object, or with the exception of its construction.
  using Ready =
      std::function<void(const std::shared_ptr<Object>& object, std::exception_ptr error)>;
  using Then = std::function<void(bool known)>;

  // Registers an object that is being made for `user`, whose count becomes one. Does nothing where
  // it is known.
  void expect(ObjectId id, uint64_t user);
  // The object has been made, or could not be; this thread calls the waiting callbacks.
  void made(ObjectId id, std::shared_ptr<Object> object, std::exception_ptr error);
  // Adds one to the count of `user`. Returns false if there is no such object (any more).
  bool add(ObjectId id, uint64_t user);
  // Subtracts `times` from the count of `user`.
  void release(ObjectId id, uint64_t user, uint64_t times);
  // Calls `ready` once the object is made, at once if it is. Returns false if there is none.
  bool when_made(ObjectId id, Ready ready);
  // Calls `then` once the object is expected. If it is known already, calls it at once and returns
  // 0; otherwise returns a number for give_up().
  uint64_t when_known(ObjectId id, Then then);
  // Tells the waiting callback that there is no such object. Does nothing where it no longer waits.
  void give_up(uint64_t waiting);
  // No object is expected or made any more: tells all waiting callbacks.
  void close();

  // The user gave a sign of life at `now`.
  void heard(uint64_t user, Time now);
  // The user's process seems to have ended: it is dropped unless it is heard before `until`.
  void doubt(uint64_t user, Time heard_at_least);
  // Drops all counts of users that were last heard before `oldest`; returns these users.
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

}  // namespace lockstep::inline v0::rpc::internal
