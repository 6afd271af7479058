// Channels: messages between two ranks through the byte rings of a region: a FIFO each way, with one
// producer and one consumer.
#pragma once

#include <deque>
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
class Channels {
 public:
  Channels(Region region, int rank);
  ~Channels();

  std::shared_ptr<Message> post(const Call& call);
  // Moves what can be moved. True if anything moved. Throws Mismatch when a message does not fit
  // its receive.
  bool progress();
  // True if a message of `tag` from `src` is there, whole or in part, that no posted receive
  // claims. Messages before it in the ring are taken out into memory.
  bool probe(int src, int tag);
  bool busy() const { return busy_ != 0; }

 private:
  struct Incoming;
  bool progress_sends(int dst);
  bool progress_receives(int src);
  bool read_header(int src);
  bool open_message(int src);
  void park(int src);

  Region region_;
  int rank_;
  struct Outgoing {
    std::deque<std::shared_ptr<Message>> queue;
    int64_t sent = 0;  // of the front message, header included
  };
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  int busy_ = 0;  // messages posted and not done
};

}  // namespace lockstep::rounds
