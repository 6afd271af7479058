// References: this process's references to objects, its own objects, and their leases. Not a public
// header.
//
// An owner counts its users, which are processes (object_table.h). A process tells the owner when
// it has a reference (rpc.add) and when it has let go of it (a notice), and every third of a lease
// that it is alive. References in messages: message_references.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/background_connector.h"
#include "lockstep/rpc/internal/calls.h"
#include "lockstep/rpc/internal/object_table.h"
#include "lockstep/rpc/registry.h"

namespace lockstep::inline v0::rpc::internal {

// Thread-safety: any thread.
class References final : public ReferenceCodec {
 public:
  // `calls` outlives it. Registers rpc.fetch, rpc.wait and rpc.add.
  References(Calls& calls, Registry& registry);
  // `agent` owns this object. Leases are kept from now on.
  void start(const std::shared_ptr<Core>& agent);

  ReferencePtr own(std::shared_ptr<Object> object);
  // Calls the function; its result stays with the other process. Throws what Calls::call() throws,
  // and the errors of finding that process.
  ReferencePtr remote(const std::string& to, const Request& request, Writer& arguments,
                      const Peer* owner);
  // Calls one of the owner agent's own functions, with the object's number as its argument.
  void ask_owner(const Reference& reference, std::string_view function, const CallOptions& options,
                 const PendingPtr& call);

  void write_reference(Writer& writer, const ReferencePtr& reference) override;
  ReferencePtr read_reference(Reader& reader) override;
  void gone(Reference& reference) noexcept;

  // Calls `then` once it is known whether such an object exists or will exist: its request may be
  // on its way.
  void when_known(ObjectId id, ObjectTable::Then then);
  // Calls `ready` with the object once it is made. False: there is none, nor will there be one.
  void when_made(ObjectId id, const ObjectTable::Ready& ready, const std::string& otherwise);
  ObjectTable& objects() { return objects_; }

  // Notices of other processes.
  void alive(const Peer& user) { objects_.heard(user.incarnation, Deadline::Clock::now()); }
  void released(Reader& notice);
  // A link with this process was lost: its references soon count no longer, unless it is heard.
  void doubt(const Peer& user);
  // Drops the references of silent processes, on a worker.
  void expire();

  // Ends the wait for objects, and the threads.
  void close() { objects_.close(); }
  void stop(Deadline deadline) noexcept;

  size_t held() const;  // the references to objects of others
  Calls& calls() { return calls_; }
  const std::weak_ptr<References>& self() const { return self_; }
  const std::weak_ptr<Core>& agent() const { return agent_; }
  uint64_t next_number() { return ++numbers_; }

 private:
  ReferencePtr reference_to(const Peer& owner, ObjectId id, uint64_t adds);
  // Tells the owner that this process has the object too, once the owner is connected. Never waits
  // or throws: the call ends in any case.
  void add_at_owner(const Peer& owner, ObjectId id, const PendingPtr& call);
  void keep_leases();
  void tell_what_was_not();

  Calls& calls_;
  std::weak_ptr<References> self_;
  std::weak_ptr<Core> agent_;
  ObjectTable objects_;
  std::atomic<uint64_t> numbers_{0};

  mutable Mutex mutex_;
  std::map<std::pair<uint64_t, ObjectId>, std::weak_ptr<Reference>> references_
      LOCKSTEP_GUARDED_BY(mutex_);
  // Released references whose owner had no link with this process at that time.
  struct Untold {
    Peer owner;
    Writer notice;
    Deadline::Clock::time_point since;
  };
  std::vector<Untold> untold_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<BackgroundConnector> connector_;  // from start() on
};

}  // namespace lockstep::inline v0::rpc::internal
