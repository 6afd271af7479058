// Messages: sends and receives between two ranks, matched by tag in the order of sending.
//
// A short message is sent at once, and the receiver keeps it until its receive is posted (the eager
// protocol). For a longer one the sender asks first, and sends when the receive is posted, straight
// from tensor to tensor (rendezvous).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/tcp/link.h"

namespace lockstep::inline v0::tcp {

// A pending send or receive. The call's memory must stay valid until `done`.
class Message final : public SendListener {
 public:
  explicit Message(const Call& c)
      : call(c), bytes(c.count * static_cast<int64_t>(c10::elementSize(c.dtype))) {
    call.note = {};  // its text may be gone
    call.record = nullptr;
  }
  void sent(int last) override { done = done || last != 0; }

  Call call;
  int64_t bytes;
  int64_t arrived = 0;
  bool done = false;
};

class Messages {
 public:
  // `link(peer)` is the connection to a peer; null for this rank itself. `report` is called for a
  // message that does not fit its receive.
  Messages(int rank, int size, std::function<Link*(int)> link,
           std::function<void(const std::string&)> report);

  std::shared_ptr<Message> post(const Call& call);

  // Frames of the types kMessage, kAsk, kGo and kPart, as for FrameListener.
  std::byte* begin_frame(int src, const FrameHeader& header, std::string_view text);
  void end_frame(int src, const FrameHeader& header);

  // Bytes from `peer` without a posted receive.
  size_t parked_bytes(int peer) const { return peers_[peer].parked_bytes; }
  // Some receive from `src` is posted and not done, or a send to it waits for an answer.
  bool awaits(int src) const;
  // Whether a message of that tag has arrived, or is announced, that no posted receive claims.
  bool has_unclaimed(int src, int tag) const;
  void clear();

 private:
  // A message that arrived before its receive was posted.
  struct Parked {
    FrameHeader header;
    std::string text;
    std::unique_ptr<std::byte[]> payload;
    bool complete = false;
    std::shared_ptr<Message> self;  // a long send of this rank to itself
  };
  struct Peer {
    std::deque<std::shared_ptr<Message>> waiting;            // posted receives, in order
    std::deque<std::shared_ptr<Parked>> parked;              // in order of arrival
    std::map<uint64_t, std::shared_ptr<Message>> asking;     // long sends, by number
    std::map<uint64_t, std::shared_ptr<Message>> streaming;  // long receives, by number
    std::shared_ptr<Message> current;                        // the receive of the current frame,
    std::shared_ptr<Parked> parking;                         // or the memory where it is parked
    uint64_t sent = 0;
    size_t parked_bytes = 0;
  };
  bool fits(const FrameHeader& header, std::string_view text, const Message& receive, int src);
  std::shared_ptr<Message> take_waiting(Peer& peer, int tag);
  void take_parked(int src);
  void send_to_self(const std::shared_ptr<Message>& message);

  int rank_;
  std::function<Link*(int)> link_;
  std::function<void(const std::string&)> report_;
  std::vector<Peer> peers_;
};

}  // namespace lockstep::inline v0::tcp
