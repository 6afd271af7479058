// Notices: messages without a call. Not a public header.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/internal/link.h"

namespace lockstep::inline v0::rpc::internal {

// The first byte of a notice. What follows is written and read by the class that is named.
enum class Notice : uint8_t {
  kAlive = 1,     // this process has references (References)
  kAcknowledged,  // a message with references has been read or dropped (Receipt)
  kReleased,      // a reference has been given back (References)
  kForget,        // an autograd context has ended (Contexts)
};

inline Writer notice_of(Notice kind) {
  Writer notice;
  notice.byte(static_cast<uint8_t>(kind));
  return notice;
}
// Over a link that the other end made, too. Never waits.
inline void send_notice(Link& link, const Writer& notice) {
  link.send({MessageKind::kNotice, 0}, notice.body(), {}, {}, Link::When::kNow);
}

}  // namespace lockstep::inline v0::rpc::internal
