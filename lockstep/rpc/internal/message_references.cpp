#include "lockstep/rpc/internal/message_references.h"

#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/rpc/internal/notice.h"

namespace lockstep::inline v0::rpc::internal {

// References are released without the lock, because that may end objects of the user.

void SentReferences::keep(MessageId message, std::vector<ReferencePtr> references) {
  const MutexLock lock(mutex_);
  // A peer may call twice with one number; what was kept then goes without the lock.
  kept_[message].swap(references);
}

void SentReferences::release(MessageId message) noexcept {
  std::vector<ReferencePtr> released;
  const MutexLock lock(mutex_);
  const auto found = kept_.find(message);
  if (found == kept_.end()) return;
  released.swap(found->second);
  kept_.erase(found);
}

void SentReferences::lost(const Link& link) noexcept {
  decltype(kept_) released;
  const MutexLock lock(mutex_);
  auto at = kept_.lower_bound({.link = &link});
  while (at != kept_.end() && at->first.link == &link) released.insert(kept_.extract(at++));
}

size_t SentReferences::messages() const {
  const MutexLock lock(mutex_);
  return kept_.size();
}

Receipt::Receipt(std::weak_ptr<void> agent, std::shared_ptr<Link> link, uint64_t call, bool answer)
    : agent_(std::move(agent)), link_(std::move(link)), call_(call), answer_(answer) {}

Receipt::~Receipt() {
  const auto alive = agent_.lock();
  if (!alive) return;
  try {
    Writer notice = notice_of(Notice::kAcknowledged);
    notice.byte(answer_ ? 1 : 0);
    notice.word(call_);
    send_notice(*link_, notice);
  } catch (const std::exception& error) {
    log_warning("rpc: a message of " + link_->peer().str() +
                " cannot be acknowledged: " + error.what());
  }
}

std::shared_ptr<Receipt> receipt_of(const std::weak_ptr<void>& agent,
                                    const std::shared_ptr<Link>& link, const Incoming& message) {
  if (!message.head.references) return nullptr;
  return std::make_shared<Receipt>(agent, link, message.head.call,
                                   message.head.kind == MessageKind::kResponse);
}

MessageId read_acknowledgement(const Link& link, Reader& notice) {
  const bool answer = notice.byte() != 0;
  return {&link, notice.word(), answer};
}

}  // namespace lockstep::inline v0::rpc::internal
