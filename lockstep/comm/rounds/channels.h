// Channels: messages between two ranks through the byte rings of a region: a FIFO each way, with one
// producer and one consumer.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/rounds/region.h"
#include "lockstep/comm/types.h"

namespace lockstep::rounds {

// A send or receive under way. The call's memory must stay valid until `done`.
struct Message {
  Call call;
  int64_t bytes = 0;
  bool done = false;
};

// This rank's ends of its channels. One thread at a time; never blocks. What is published is stored
// sequentially consistent, for the doorbell that the engine rings after progress().
//
// A message travels as a header and its payload. The receiver streams a payload straight into the
// first posted receive with that tag. A message whose tag nobody asked for yet stays in the ring;
// only when a receive for another tag waits behind it is it taken out into memory, so that tags may
// be received out of order.
//
// A payload for which the ring has no room would need its sender in calls of ours until the receiver has all of
// it. Where ranks reach each other's memory, the receiver pulls it instead, when it likes, while the sender
// computes; the send is done when it has.
class Channels {
 public:
  // Copies from a rank's memory into this rank's. False where that memory may be somebody else's by now: the group is
  // broken, or the rank has left; the message then never comes. Throws PeerLost, SystemError.
  using Pull = std::function<bool(int rank, uint64_t address, std::byte* to, int64_t bytes)>;

  // Payloads from `pulls_from` bytes on may be pulled, with the same `pull` or none on all ranks.
  Channels(Region region, int rank, Pull pull = nullptr, int64_t pulls_from = 0);
  ~Channels();

  std::shared_ptr<Message> post(const Call& call);
  // Moves what can be moved. True if anything moved. Throws Mismatch when a message does not fit
  // its receive.
  bool progress();
  // True if a message of `tag` from `src` is there, whole or in part, that no posted receive
  // claims. Messages before it in the ring are taken out into memory.
  bool probe(int src, int tag);
  bool busy() const { return busy_ != 0; }
  // Whether a peer may be about to pull from memory of this rank's.
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
    std::deque<std::shared_ptr<Message>> exposed;  // whose payloads the receiver pulls, in order
    uint64_t pulled = 0;                           // of those it has
  };
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  int busy_ = 0;  // messages posted and not done
};

}  // namespace lockstep::rounds
