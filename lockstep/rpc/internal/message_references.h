// The references in messages. One rule: a message owns its references until it is acknowledged. Not
// a public header.
//
// The sender keeps them in SentReferences, from before the message is sent. The receiver has a
// Receipt of the message, which is owned by the code that reads it and by each reference that is
// being registered with its owner; its end acknowledges the message. The owner's count therefore
// never drops to zero while a reference is on its way, and a message that is dropped unread, for
// whatever reason, is acknowledged like any other. A lost link ends the ownership of all its
// messages.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/link.h"
#include "lockstep/rpc/rref.h"

namespace lockstep::inline v0::rpc::internal {

// The request or the answer of a call.
struct MessageId {
  const Link* link = nullptr;
  uint64_t call = 0;
  bool answer = false;
  friend auto operator<=>(const MessageId&, const MessageId&) = default;
};

// The references of this process's messages that are not acknowledged yet.
// Thread-safety: any thread.
class SentReferences {
 public:
  // Called before the message is sent.
  void keep(MessageId message, std::vector<ReferencePtr> references);
  // It was acknowledged, or not sent. Does nothing where nothing is kept.
  void release(MessageId message) noexcept;
  // No message of the link is acknowledged any more.
  void lost(const Link& link) noexcept;
  size_t messages() const;

 private:
  mutable Mutex mutex_;
  std::map<MessageId, std::vector<ReferencePtr>> kept_ LOCKSTEP_GUARDED_BY(mutex_);
};

// A received message that has references.
class Receipt {
 public:
  // `agent` keeps alive what the link works with.
  Receipt(std::weak_ptr<void> agent, std::shared_ptr<Link> link, uint64_t call, bool answer);
  // Acknowledges the message; never waits.
  ~Receipt();
  Receipt(const Receipt&) = delete;
  Receipt& operator=(const Receipt&) = delete;

 private:
  const std::weak_ptr<void> agent_;
  const std::shared_ptr<Link> link_;
  const uint64_t call_;
  const bool answer_;
};
// Null: the message has no references.
std::shared_ptr<Receipt> receipt_of(const std::weak_ptr<void>& agent,
                                    const std::shared_ptr<Link>& link, const Incoming& message);
// Reads the notice of a Receipt of the other end.
MessageId read_acknowledgement(const Link& link, Reader& notice);

}  // namespace lockstep::inline v0::rpc::internal
