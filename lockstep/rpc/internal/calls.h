// Calls: the calls that this process makes, from their start to their answer. Not a public header.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/agent_options.h"
#include "lockstep/rpc/call_context.h"
#include "lockstep/rpc/internal/board_page.h"
#include "lockstep/rpc/internal/call_table.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/rpc/internal/message_sender.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/rpc/pending.h"

namespace lockstep::inline v0::rpc::internal {

// Thread-safety: any thread.
class Calls {
 public:
  // All of them outlive it.
  Calls(const AgentOptions& options, Reactor& reactor, Transport& transport, MessageSender& sender,
        BoardPage& board);
  // `agent` owns this object, and keeps alive what it works with. `codec`: of the references in
  // answers.
  void start(const std::shared_ptr<Core>& agent, ReferenceCodec& codec);

  struct Extra {
    std::optional<ObjectId> keep = {};  // RequestHead's
    // This very process: PeerLost if it is gone, whichever process has its name.
    const Peer* owner = nullptr;
    bool waits_for_room = true;      // waits where the peer's queue is full
    const DeviceWay* way = nullptr;  // null: that of the agent's options
  };
  // Makes a call of this process. The writer is empty afterwards, however this ends.
  // Throws: InvalidArgument for arguments that cannot be sent; other errors are the call's.
  void call(const std::string& to, const Request& request, Writer& arguments,
            const PendingPtr& call, const Extra& extra);
  void cancel(Pending& call);
  // Cancels the nested calls of requests that were cancelled.
  void cancel_within(const std::vector<const std::atomic<bool>*>& calls);

  // Throws PeerLost where the owner of a reference is known to be gone, or another process has its
  // name; Cancelled where the agent was stopped.
  void check_owner(const Peer& owner) const;
  // The link to the process that has this name or, with `owner`, to that very one.
  // Throws: as check_owner() and Transport::link_to().
  std::shared_ptr<Link> link_of(const std::string& to, Deadline deadline,
                                const Peer* owner = nullptr);
  bool has_link_to(const std::string& name) const {
    return transport_.living_link_to(name) != nullptr;
  }
  // Sends a notice over the living link with this very process, if there is one. Never waits: no
  // thread waits for notices.
  bool tell(const Peer& peer, const Writer& notice);
  // Likewise to the process that has this name.
  void tell(const std::string& name, const Writer& notice);

  // A response or an error has arrived.
  void answered(const std::shared_ptr<Link>& link, Incoming& message);
  void lost(const std::shared_ptr<Link>& link, const std::string& why);

  bool wait_idle(Deadline deadline) { return table_.wait_empty(deadline); }
  // No calls are made from now on. Returns false if that was so before.
  bool close() noexcept { return !stopped_.exchange(true); }
  void cancel_all(const std::string& why) noexcept;
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  std::vector<ShownCall> list() const;

  const Peer& self() const { return transport_.self(); }
  const AgentOptions& options() const { return options_; }
  Reactor& reactor() { return reactor_; }

 private:
  bool has_room(const Link& link, bool copies) const;
  void wait_for_room(const Pending& call, bool copies);
  // Sends a request whose tensors' copies are complete (MessageSender::Then).
  void send_copied(const PendingPtr& call, const Outgoing& message, const std::string& body,
                   const Tensors* copies, std::exception_ptr error) noexcept;
  void take_answer(const PendingPtr& call, Incoming& message, std::shared_ptr<Receipt> receipt);
  // Takes it out of the table, where it still is, and ends it.
  void end(const PendingPtr& call, const std::exception_ptr& error) noexcept;
  void finish(const PendingPtr& call, std::exception_ptr error) noexcept;
  void keep_time();
  DeviceWay way_to(const std::string& peer) const;
  // The error of a call whose link takes nothing.
  std::exception_ptr not_sent(const Pending& call) const;

  const AgentOptions& options_;
  Reactor& reactor_;
  Transport& transport_;
  MessageSender& sender_;
  BoardPage& board_;
  ReferenceCodec* codec_ = nullptr;  // from start() on
  std::weak_ptr<Calls> self_;
  CallTable table_;
  std::atomic<int64_t> nested_{0};  // pending calls that have a `within`
  std::atomic<bool> stopped_{false};

  mutable Mutex mutex_;
  uint64_t clock_timer_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Incarnations of lost processes that this process had called.
  std::set<uint64_t> gone_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Calls one of another agent's own functions, outside any autograd context.
template <typename R, typename... A>
Future<R> call_agent(Calls& calls, const std::string& to, std::string_view function, How how,
                     const Calls::Extra& extra, const A&... arguments) {
  Writer& writer = scratch_writer(nullptr);
  write_all(writer, arguments...);
  auto call = std::make_shared<TypedCall<R>>();
  const ContextScope outside(this_context().without_autograd());
  calls.call(to, {.function = function, .how = how}, writer, call, extra);
  return Future<R>(std::move(call));
}

}  // namespace lockstep::inline v0::rpc::internal
