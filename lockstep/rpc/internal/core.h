// Core: the state that all handles of an agent share. Not a public header.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/core/ticks.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/call_context.h"
#include "lockstep/rpc/internal/background_connector.h"
#include "lockstep/rpc/internal/call_table.h"
#include "lockstep/rpc/internal/contexts.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/rpc/internal/object_table.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::rpc::internal {

class InboundCall;

// A request's properties besides its arguments, written before them.
struct RequestHead {
  uint64_t types_hash = 0;  // 0: not compared
  std::string_view function;
  uint64_t ends_in_ns = 0;
  uint64_t order = 0;
  std::optional<ObjectId> keep;     // the result stays at the callee under this number
  std::optional<Recording> record;  // for distributed autograd
  DeviceWay way = {};               // from the caller to this process

  void write(Writer& writer) const;
  static RequestHead read(Reader& reader);
};

// Writes and reads the references of messages over a link.
class LinkReferences final : public References {
 public:
  LinkReferences(Core& core, std::shared_ptr<Link> link) : core_(core), link_(std::move(link)) {}
  void write_reference(Writer& writer, const ReferencePtr& reference) override;
  ReferencePtr read_reference(Reader& reader) override;

 private:
  Core& core_;
  std::shared_ptr<Link> link_;
};

// This thread's writer for a request's head.
Writer& scratch_head();

class Core : public std::enable_shared_from_this<Core>, public References {
 public:
  Core(Registry registry, std::shared_ptr<Store> store, const Secret& secret, AgentOptions options);
  ~Core();
  // Called after the constructor, since handlers need shared_from_this().
  void start();

  struct CallOf {
    std::optional<ObjectId> keep = {};  // RequestHead's
    // This very process: PeerLost if it is gone, whichever process has its name.
    const Peer* owner = nullptr;
    bool waits_for_room = true;      // waits where the peer's queue is full
    const DeviceWay* way = nullptr;  // null: that of the agent's options
  };
  // Makes a call of this process.
  void call(const std::string& to, std::string_view function, uint64_t types_hash,
            const std::string* types, Writer& arguments, const CallOptions& options, How how,
            const PendingPtr& call, const CallOf& of);
  // Calls one of the owner agent's own functions.
  void call_owner(const Peer& owner, std::string_view function, Writer& arguments,
                  const CallOptions& options, How how, const PendingPtr& call);
  // Tells the owner that this process has the object too, once the owner is connected. Never waits
  // or throws: the call ends in any case.
  void add_at_owner(const Peer& owner, ObjectId id, const PendingPtr& call);
  void cancel(Pending& call);
  // Cancels the nested calls of requests that were cancelled.
  void cancel_within(const std::vector<const std::atomic<bool>*>& calls);
  // Throws PeerLost where the owner of a reference is known to be gone, or another process has its
  // name.
  void check_owner(const Peer& owner) const;

  // Calls `then` once it is known whether such an object exists or will exist: its request may be
  // on its way.
  void when_known(ObjectId id, ObjectTable::Then then);
  // References of this process.
  ReferencePtr own(std::shared_ptr<Object> object);
  ReferencePtr remote(const std::string& to, std::string_view function, uint64_t types_hash,
                      const std::string& types, Writer& arguments, const CallOptions& options,
                      const Peer* owner);
  void write_reference(Writer& writer, const ReferencePtr& reference) override;
  ReferencePtr read_reference(Reader& reader) override;  // throws: messages are read with a link
  ReferencePtr read_reference(Reader& reader, const std::shared_ptr<Link>& link);
  void reference_gone(Reference& reference) noexcept;

  bool wait_idle(Deadline deadline) { return calls_.wait_empty(deadline); }
  void meet_all(Deadline deadline);  // the second half of shutdown()
  // The store ends with this process: it therefore exits after the others, which use the store to
  // the end.
  void serve_store() { serves_store_ = true; }
  bool serves_store() const { return serves_store_; }
  void wait_left(Deadline deadline) noexcept;
  void say_left() noexcept;  // after stop()
  // Stops serving and making calls. A thread of the agent's own does not wait for itself. If
  // another thread is stopping the agent, this waits for it.
  void stop(const std::string& why, Deadline deadline) noexcept;

  std::vector<Agent::PendingCall> pending_calls() const;
  size_t held_references() const;
  size_t holds() const;  // references that have not arrived yet at their receiver
  const AgentOptions& options() const { return options_; }
  const Peer& self() const { return transport_->self(); }
  ObjectTable& objects() { return objects_; }
  Contexts& contexts() { return contexts_; }
  Reactor& reactor() { return *reactor_; }
  Transport& transport() { return *transport_; }
  DeferredSender& sender() { return sender_; }
  uint64_t next_number() { return ++numbers_; }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  // Registers a function of the agent's own.
  static void insert_own(Registry& registry, const std::string& name,
                         std::shared_ptr<Function> function, FunctionOptions options = {});
  // The context is no longer needed; tells the peers that were called in it.
  void forget(ContextId id);
  void served(const InboundCall& call) noexcept;  // called when it has ended
  // The message of a call: its request or its answer.
  struct MessageOf {
    uint64_t call = 0;
    bool answer = false;
    friend bool operator==(const MessageOf&, const MessageOf&) = default;
  };
  // References that were written are sent over this link, in this message.
  void held_by(const std::vector<uint64_t>& holds, const std::shared_ptr<Link>& link,
               MessageOf message) noexcept;
  // The message was not sent, or has arrived.
  void drop_holds(const std::vector<uint64_t>& holds) noexcept;
  // The message will not be read: the other end need not keep its tensors or references.
  void drop_unread(const std::shared_ptr<Link>& link, const Incoming& message) noexcept;
  // The message will not be read to its end: its references need not be held.
  void say_unread(const std::shared_ptr<Link>& link, MessageOf message) noexcept;

 private:
  struct Line {  // calls of one peer with one order number
    bool busy = false;
    std::deque<std::shared_ptr<InboundCall>> waiting;
  };
  using LineKey = std::pair<const Link*, uint64_t>;

  void register_own_functions();
  void received(const std::shared_ptr<Link>& link, Incoming& message);
  void received_request(const std::shared_ptr<Link>& link, Incoming& message);
  void received_answer(const std::shared_ptr<Link>& link, Incoming& message);
  void received_notice(const std::shared_ptr<Link>& link, Reader& notice);
  void lost(const std::shared_ptr<Link>& link, const std::string& why);
  void finish(const PendingPtr& call, std::exception_ptr error) noexcept;
  void keep_time();
  void keep_leases();
  // Shows long-pending calls in the flight recorder.
  void show_pending();
  uint64_t show(bool incoming, const std::string& function, const std::string& peer,
                Deadline::Clock::time_point begun) noexcept;
  void expire();
  void send_notice(const std::shared_ptr<Link>& link, const Writer& notice);
  // Sends a notice over the living link with this very process, if there is one. Never waits: no
  // thread waits for notices.
  bool tell(const Peer& peer, const Writer& notice);
  void tell_what_was_not();
  std::shared_ptr<Link> link_of(const std::string& to, Deadline deadline,
                                const Peer* owner = nullptr);
  std::exception_ptr error_of(const Pending& call, Reader& error) const;
  DeviceWay way_to(const std::string& peer) const;
  // Sends a request whose tensors' copies are complete (DeferredSender::Send).
  void send_copied(const PendingPtr& call, const std::string& text, const Tensors* copies,
                   std::exception_ptr error, const Devices& devices,
                   const std::vector<uint64_t>& holds) noexcept;
  // The error of a call whose link takes nothing.
  std::exception_ptr not_sent(const Pending& call) const;

  const AgentOptions options_;
  Registry registry_;
  std::shared_ptr<Store> store_;
  const Secret secret_;
  std::unique_ptr<Reactor> reactor_;
  CallTable calls_;
  ObjectTable objects_;
  Contexts contexts_;
  DeferredSender sender_;
  std::atomic<uint64_t> numbers_{0};
  std::atomic<int64_t> nested_{0};  // pending calls that have a `within`
  std::atomic<bool> stopped_{false};
  std::atomic<bool> serves_store_{false};

  mutable Mutex mutex_;
  ConditionVariable has_ended_;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;        // stop() has ended
  std::thread::id stopping_ LOCKSTEP_GUARDED_BY(mutex_);  // the thread that is in stop()
  uint64_t clock_timer_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<LineKey, Line> lines_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<InboundCall*> serving_ LOCKSTEP_GUARDED_BY(mutex_);
  // Incarnations of lost processes that this process had called.
  std::set<uint64_t> gone_ LOCKSTEP_GUARDED_BY(mutex_);
  struct Hold {
    ReferencePtr reference;
    std::shared_ptr<Link> link;
    MessageOf message;
  };
  std::map<uint64_t, Hold> holds_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, ObjectId>, std::weak_ptr<Reference>> references_
      LOCKSTEP_GUARDED_BY(mutex_);

  // Released references whose owner had no link with this process at that time.
  struct Untold {
    Peer owner;
    Writer notice;
    Deadline::Clock::time_point since;
  };
  std::vector<Untold> untold_ LOCKSTEP_GUARDED_BY(mutex_);

  // Call board of the launching agent, and this process's slot on it.
  std::optional<trace::CallBoard> board_;
  int board_rank_ = 0;
  const Deadline::Clock::time_point started_ = Deadline::Clock::now();
  const uint64_t started_ticks_ = ticks();
  std::unique_ptr<Transport> transport_;  // constructed last, destroyed first, except for its user:
  std::unique_ptr<BackgroundConnector> connector_;
};

// Calls one of another agent's own functions, outside any autograd context. `way` replaces the
// options' way of devices; null: the options'.
template <typename R, typename... A>
Future<R> call_agent_by(Core& core, const DeviceWay* way, const std::string& to,
                        std::string_view function, How how, const A&... arguments) {
  Writer& writer = scratch_writer(core.shared_from_this());
  write_all(core, writer, arguments...);
  auto call = std::make_shared<TypedCall<R>>();
  const ContextScope outside(this_context().without_autograd());
  core.call(to, function, 0, nullptr, writer, {}, how, call, {.way = way});
  return Future<R>(std::move(call));
}
template <typename R, typename... A>
Future<R> call_agent(Core& core, const std::string& to, std::string_view function, How how,
                     const A&... arguments) {
  return call_agent_by<R>(core, nullptr, to, function, how, arguments...);
}

}  // namespace lockstep::rpc::internal
