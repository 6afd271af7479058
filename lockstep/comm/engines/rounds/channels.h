// Channels: messages between two ranks through the byte rings of a region. Each direction is a FIFO
// with one producer and one consumer.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/rounds/region.h"

namespace lockstep::inline v0::rounds {

// A pending send or receive. The call's memory must stay valid until `done`.
struct Message {
  Call call;
  int64_t bytes = 0;
  bool done = false;
};

// This rank's ends of its channels. Never blocks. Published values are stored sequentially
// consistently, for the doorbell that the engine rings after progress().
// Thread-safety: one thread at a time.
//
// A message travels as a header and its payload. The receiver streams a payload straight into the
// first posted receive with that tag. A message without a posted receive stays in the ring; it is
// copied out to memory only when a receive for another tag waits behind it, so that tags may be
// received out of order.
//
// A payload that does not fit into the ring would need its sender inside calls of the engine until
// the receiver has all of it. Where ranks can access each other's memory, the receiver instead
// pulls it at any time, while the sender computes; the send completes when the receiver has pulled
// it.
class Channels {
 public:
  // Copies from a rank's memory into this rank's. Returns false where that memory may have been
  // reused, because the group is broken or the rank has left; the message then never arrives.
  // Throws: PeerLost, SystemError.
  using Pull = std::function<bool(int rank, uint64_t address, std::byte* to, int64_t bytes)>;

  // Payloads from `pulls_from` bytes on may be pulled. `pull` is given on all ranks or on none.
  Channels(Region region, int rank, Pull pull = nullptr, int64_t pulls_from = 0);
  ~Channels();

  std::shared_ptr<Message> post(const Call& call);
  // Moves all data that can be moved. Returns true if anything moved.
  // Throws: Mismatch when a message does not fit its receive.
  bool progress();
  // True if a message of `tag` from `src` has arrived, in whole or in part, that no posted receive
  // claims. Messages before it in the ring are copied out to memory.
  bool probe(int src, int tag);
  bool busy() const { return busy_ != 0; }
  // Whether a peer may be about to pull from this rank's memory.
  bool exposes() const;

 private:
  struct Incoming;
  bool progress_sends(int dst);
  bool settle_pulled(int dst);
  bool take_payload(int src);
  bool progress_receives(int src);
  bool read_header(int src);
  bool open_message(int src);
  void park(int src);

  Region region_;
  int rank_;
  Pull pull_;
  int64_t pulls_from_;
  struct Outgoing {
    std::deque<std::shared_ptr<Message>> queue;
    int64_t sent = 0;    // of the front message, header included
    bool shown = false;  // the front message's header says where its payload lies
    // Messages whose payloads the receiver pulls, in order.
    std::deque<std::shared_ptr<Message>> exposed;
    uint64_t pulled = 0;  // how many of them it has pulled
  };
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  int busy_ = 0;  // messages posted and not complete
};

}  // namespace lockstep::inline v0::rounds
