// InboundCalls: the calls of other processes while they are served here. Not a public header.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/board_page.h"
#include "lockstep/rpc/internal/calls.h"
#include "lockstep/rpc/internal/contexts.h"
#include "lockstep/rpc/internal/message_sender.h"
#include "lockstep/rpc/internal/references.h"
#include "lockstep/rpc/registry.h"

namespace lockstep::inline v0::rpc::internal {

class InboundCall;

// Thread-safety: any thread.
class InboundCalls {
 public:
  // All of them outlive it.
  InboundCalls(const Registry& registry, Calls& calls, MessageSender& sender, Contexts& contexts,
               References& references, BoardPage& board);
  void start(const std::shared_ptr<Core>& agent) { agent_ = agent; }

  // A request or a cancellation has arrived.
  void requested(const std::shared_ptr<Link>& link, Incoming& message);
  void cancelled(const std::shared_ptr<Link>& link, uint64_t call);
  // Cancels the calls of the link.
  void lost(const std::shared_ptr<Link>& link);
  void cancel_all();
  std::vector<ShownCall> list() const;

 private:
  friend class InboundCall;
  struct Line {  // calls of one peer with one order number
    bool busy = false;
    std::deque<std::shared_ptr<InboundCall>> waiting;
  };
  void ended(InboundCall& call) noexcept;

  const Registry& registry_;
  Calls& calls_;
  MessageSender& sender_;
  Contexts& contexts_;
  References& references_;
  BoardPage& board_;
  std::weak_ptr<Core> agent_;

  mutable Mutex mutex_;
  std::map<std::pair<const Link*, uint64_t>, Line> lines_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<InboundCall*> serving_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::rpc::internal
