#include "lockstep/rpc/internal/message_sender.h"

#include <utility>

namespace lockstep::inline v0::rpc::internal {

bool MessageSender::must_wait(const Outgoing& message) const {
  return !message.devices.empty() ||
         (message.order != 0 && copies_.has({message.link.get(), message.order}));
}

void MessageSender::keep(Outgoing& message, Writer& writer) {
  message.references = !writer.references().empty();
  if (message.references) references_.keep(message.id(), std::move(writer.references()));
}

void MessageSender::drop(const Outgoing& message) noexcept {
  if (message.references) references_.release(message.id());
}

bool MessageSender::send(Outgoing message, std::string_view front, Writer& writer,
                         Link::When when) {
  keep(message, writer);
  try {
    if (message.link->send({message.kind, message.call, nullptr, message.references}, front,
                           writer.body(), writer.tensors(), when))
      return true;
  } catch (...) {
    drop(message);
    throw;
  }
  drop(message);
  return false;
}

Copies MessageSender::copy(const Outgoing& message, std::string_view front, Writer& writer) {
  message.link->check(front.size() + writer.body().size(), writer.tensors());
  return copies_.copy(writer.tensors());
}

bool MessageSender::send_later(Outgoing message, Copies copies, std::string_view front,
                               Writer& writer, Deadline deadline, Then then) {
  keep(message, writer);
  try {
    std::string body(front);
    body += writer.body();
    const DeferredSender::Line line{message.link.get(), message.order};
    if (copies_.post(std::move(copies), line, deadline,
                     [message, body = std::move(body), then = std::move(then)](
                         const Tensors* tensors, const std::exception_ptr& error) {
                       then(message, body, tensors, error);
                     }))
      return true;
  } catch (...) {
    drop(message);
    throw;
  }
  drop(message);
  return false;
}

bool MessageSender::send_copies(const Outgoing& message, const std::string& body,
                                const Tensors& copies) {
  try {
    if (message.link->send({message.kind, message.call, &message.devices, message.references}, body,
                           {}, copies, Link::When::kNow))
      return true;
  } catch (...) {
    drop(message);
    throw;
  }
  drop(message);
  return false;
}

}  // namespace lockstep::inline v0::rpc::internal
