// Exchange: one pending schedule.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/tcp/link.h"
#include "lockstep/comm/engines/tcp/schedule.h"

namespace lockstep::inline v0::tcp {

class Exchange;

// The description of a collective that ranks exchange. Every incomplete part of the collective owns
// the record, so it exists while it may be sent or compared.
struct Record {
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;
  uint64_t history = 0;  // hash of all earlier collectives
  std::string text;
  std::vector<int> waits_for = {};  // the ranks that a peer waits for, where it said so
};

// The output of an exchange.
class Wire {
 public:
  virtual ~Wire() = default;
  // Tells `peer` that this rank has started the exchange and will send it `amount` bytes.
  virtual void send_call(int peer, const Exchange& exchange, uint64_t amount) = 0;
  virtual void send_data(int peer, uint64_t key, const std::byte* data, size_t bytes,
                         std::shared_ptr<SendListener> listener, int token) = 0;
};

// Memory for partial results, reused by later exchanges.
class ScratchPool {
 public:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    size_t bytes = 0;
  };
  Block take(size_t bytes);
  void give(Block block);

 private:
  std::vector<Block> free_;
};

// Transfers of more than this many bytes from one rank to another in one exchange wait until the
// receiver has reported its start: they go straight into its tensor, and no data piles up. Smaller
// ones are sent at once.
inline constexpr int64_t kEagerBytes = 32 * 1024;

class Exchange final : public SendListener, public std::enable_shared_from_this<Exchange> {
 public:
  // `call` as the members of the group see it, a part of the collective in `record`; members[i] is
  // the world's rank of its i-th rank, `index` this one's. `key` orders the exchanges of this rank.
  Exchange(Call call, std::shared_ptr<const Record> record, std::vector<int> members, int index,
           uint64_t key);

  uint64_t key() const { return key_; }
  const Call& call() const { return call_; }
  const Record& record() const { return *record_; }  // until retire()
  bool done() const { return left_ == 0 && active_; }
  bool active() const { return active_; }

  // Makes the schedule, tells the peers and starts the steps that may start.
  void activate(Wire& wire, ScratchPool& pool, const ScheduleSizes& sizes);
  // Frees the scratch memory and releases the record.
  // Requires: done().
  void retire(ScratchPool& pool) {
    pool.give(std::move(scratch_));
    record_.reset();
  }

  // `peer` is a rank of the world; requires active().
  void peer_started(int peer);
  bool exchanges_with(int peer) const { return lane_of(peer) != nullptr; }
  // The destination of the next piece from `peer`; null, with `expected` false, if none is
  // expected.
  std::byte* expect(int peer, size_t bytes, bool& expected);
  void received(int peer);
  void sent(int token) override;

  // The ranks of the world without which this rank cannot continue.
  std::vector<int> awaited() const;
  // All ranks of the world that take part.
  const std::vector<int>& members() const { return members_; }

 private:
  // The traffic between this rank and one peer.
  struct Lane {
    int peer = -1;
    std::vector<int32_t> sends, receives;  // steps, in order
    size_t next_send = 0, next_receive = 0;
    size_t sent = 0;
    int64_t send_bytes = 0, receive_bytes = 0;
    // Needs the peer's start before anything is sent, or before the exchange completes.
    bool must_hear = false;
    bool heard = false;
  };
  const Lane* lane_of(int peer) const;
  Lane* lane_of(int peer) { return const_cast<Lane*>(std::as_const(*this).lane_of(peer)); }
  std::byte* memory(const Piece& piece) const;
  void finish(int32_t step);
  void run(int32_t index);
  void push_sends(Lane& lane);

  Call call_;
  std::shared_ptr<const Record> record_;
  std::vector<int> members_;
  bool ascending_;
  int index_;
  uint64_t key_;
  bool active_ = false;
  Wire* wire_ = nullptr;
  Schedule schedule_;
  ScratchPool::Block scratch_;
  std::vector<Lane> lanes_;           // for peers with traffic
  std::vector<int32_t> lane_index_;   // by index in members_; -1: none
  std::vector<int32_t> blocked_;      // by step: earlier steps that are not complete
  std::vector<int32_t> first_later_;  // by step: where its later steps begin in later_
  std::vector<int32_t> later_;
  size_t left_ = 0;  // incomplete steps, and required peers that have not started
};

}  // namespace lockstep::inline v0::tcp
