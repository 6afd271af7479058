// Core: an agent's parts, put together: what all its handles share. Not a public header.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/agent_options.h"
#include "lockstep/rpc/internal/board_page.h"
#include "lockstep/rpc/internal/calls.h"
#include "lockstep/rpc/internal/contexts.h"
#include "lockstep/rpc/internal/inbound_calls.h"
#include "lockstep/rpc/internal/message_sender.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/internal/references.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/rpc/registry.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::rpc::internal {

class Core : public std::enable_shared_from_this<Core> {
 public:
  // Throws as init().
  Core(Registry registry, std::shared_ptr<Store> store, const Secret& secret, AgentOptions options);
  // Messages are received from now on. Called after the constructor, since handlers need
  // shared_from_this().
  void start();

  // The second half of shutdown(): this process has arrived, and waits for the others.
  void meet_all(Deadline deadline);
  // The store ends with this process: it therefore exits after the others, which use the store to
  // the end.
  void serve_store() { serves_store_ = true; }
  bool serves_store() const { return serves_store_; }
  void wait_left(Deadline deadline) noexcept;
  void say_left() noexcept;  // after stop()
  // Stops serving and making calls. A thread of the agent's own does not wait for itself. If
  // another thread is stopping the agent, this waits for it.
  void stop(const std::string& why, Deadline deadline) noexcept;
  bool stopped() const { return calls_.stopped(); }

  std::vector<PendingCall> pending_calls() const;
  const AgentOptions& options() const { return options_; }
  const Peer& self() const { return transport_.self(); }
  Reactor& reactor() { return reactor_; }
  Transport& transport() { return transport_; }
  SentReferences& sent_references() { return sender_.references(); }
  Calls& calls() { return calls_; }
  References& references() { return references_; }
  Contexts& contexts() { return contexts_; }

 private:
  void received(const std::shared_ptr<Link>& link, Incoming& message);
  void noticed(const std::shared_ptr<Link>& link, Reader& notice);
  void lost(const std::shared_ptr<Link>& link, const std::string& why);
  std::vector<ShownCall> shown_calls() const;
  // Shows long-pending calls in the flight recorder.
  void show_pending();

  const AgentOptions options_;
  Registry registry_;
  const std::shared_ptr<Store> store_;
  BoardPage board_;
  Reactor reactor_;
  Transport transport_;
  MessageSender sender_;
  Calls calls_;
  References references_;
  Contexts contexts_;
  InboundCalls inbound_;
  std::atomic<bool> serves_store_{false};

  Mutex mutex_;
  ConditionVariable has_ended_;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;        // stop() has ended
  std::thread::id stopping_ LOCKSTEP_GUARDED_BY(mutex_);  // the thread that is in stop()
};

}  // namespace lockstep::inline v0::rpc::internal
