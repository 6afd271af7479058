// MessageSender: sends the messages of calls, whose tensors may lie on devices, and which may have
// references. Not a public header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/rpc/internal/link.h"
#include "lockstep/rpc/internal/message_references.h"

namespace lockstep::inline v0::rpc::internal {

// A request, or the answer of a call that returned.
struct Outgoing {
  std::shared_ptr<Link> link;
  MessageKind kind = MessageKind::kRequest;
  uint64_t call = 0;
  // Requests of one link with the same order, unless that is 0, are sent in the order of send().
  uint64_t order = 0;
  Devices devices = {};     // destinations of its tensors; empty: all on the CPU
  bool references = false;  // it has references; set by MessageSender

  MessageId id() const { return {link.get(), call, kind == MessageKind::kResponse}; }
};

// Thread-safety: any thread.
class MessageSender {
 public:
  // Whether it cannot be sent at once: tensors have to be copied, or it follows a message whose
  // tensors are.
  bool must_wait(const Outgoing& message) const;
  // Waits until fewer bytes of devices wait for their copies on the link. Returns false at the
  // deadline.
  bool wait_for_room(const Link& link, size_t bytes, Deadline deadline) {
    return copies_.wait_for_room(&link, bytes, deadline);
  }

  // The body is `front` and what was written. The message takes the writer's references. Returns
  // false where the link is lost; nothing is kept then, or when it throws.
  // Throws: as Link::send().
  bool send(Outgoing message, std::string_view front, Writer& writer, Link::When when);

  // The same in three steps: starts the copies (throws InvalidArgument as DeferredSender::copy()
  // and Link::send()); leaves them to a thread that calls `then` once they are complete (false: it
  // was stopped); and sends the message then, or drops it.
  Copies copy(const Outgoing& message, std::string_view front, Writer& writer);
  // `copies` and `error` are those of DeferredSender::Send. It must not throw.
  using Then = std::function<void(const Outgoing& message, const std::string& body,
                                  const Tensors* copies, const std::exception_ptr& error)>;
  bool send_later(Outgoing message, Copies copies, std::string_view front, Writer& writer,
                  Deadline deadline, Then then);
  bool send_copies(const Outgoing& message, const std::string& body, const Tensors& copies);
  void drop(const Outgoing& message) noexcept;

  SentReferences& references() { return references_; }
  // Drops waiting messages.
  void stop(Deadline deadline) noexcept { copies_.stop(deadline); }

 private:
  void keep(Outgoing& message, Writer& writer);

  SentReferences references_;
  DeferredSender copies_;
};

}  // namespace lockstep::inline v0::rpc::internal
