// Engine: calls in which ranks touch each other's memory: which ranks meet, which path the data
// takes, and when they have finished.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/engines/rounds/direct.h"
#include "lockstep/comm/engines/rounds/operation.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rounds {
namespace {

struct GroupBroke {};

}  // namespace

// The peers' memory, while the group is intact and, for one rank's memory, that rank has not left.
// A rank that was stopped in the middle may continue after its peers have given up and reused their
// memory.
class Engine::WatchedPeerMemory final : public PeerMemory {
 public:
  WatchedPeerMemory(const PeerMemory& peer_memory, const FailureBoard& failure,
                    const RankState* of = nullptr)
      : peer_memory_(peer_memory), failure_(failure), of_(of) {}

  bool is_over() const {
    return failure_.any() || (of_ != nullptr && of_->departed.load(std::memory_order_seq_cst) != 0);
  }

  std::optional<Window> find(const std::byte* memory, int64_t bytes) const override {
    return peer_memory_.find(memory, bytes);
  }
  std::byte* peer(int rank, Window window) const override {
    return peer_memory_.peer(rank, window);
  }
  SymmetricMemory allocate(int64_t) override { return {}; }
  bool copies() const override { return peer_memory_.copies(); }
  void read(int rank, uint64_t address, std::byte* to, int64_t bytes) const override {
    in_steps(bytes, [&](int64_t at, int64_t step) {
      peer_memory_.read(rank, address + static_cast<uint64_t>(at), to + at, step);
    });
  }
  void write(int rank, uint64_t address, const std::byte* from, int64_t bytes) const override {
    in_steps(bytes, [&](int64_t at, int64_t step) {
      peer_memory_.write(rank, address + static_cast<uint64_t>(at), from + at, step);
    });
  }

 private:
  template <typename Transfer>
  void in_steps(int64_t bytes, const Transfer& transfer) const {
    for (int64_t at = 0; at < bytes; at += kTransfer) {
      if (is_over()) throw GroupBroke();
      transfer(at, std::min(kTransfer, bytes - at));
    }
  }

  const PeerMemory& peer_memory_;
  const FailureBoard& failure_;
  const RankState* of_;
};

// For messages. The sender owns its memory again once it has left or the group is broken. Either
// this rank sees that, or the rank that leaves or breaks the group sees that this rank is inside.
bool Engine::pull(int rank, uint64_t address, std::byte* to, int64_t bytes) {
  const auto leave = [this](bool good) {
    own_.inside.store(0, std::memory_order_release);
    return good;
  };
  own_.inside.store(1, std::memory_order_seq_cst);
  const WatchedPeerMemory peer_memory(*peer_memory_, region_.header().failure, &region_.rank(rank));
  try {
    peer_memory.read(rank, address, to, bytes);
    // The last transfer may have taken longer than the sender waits for it.
    return leave(!peer_memory.is_over());
  } catch (const GroupBroke&) {
    return leave(false);
  } catch (const PeerLost&) {
    return leave(false);  // check_lost() reports it together with the call
  } catch (...) {
    leave(false);
    throw;
  }
}

// The memory that this rank shows its peers: its offer, or its output of a broadcast.
const std::byte* Engine::shown_memory(const Operation& op) const {
  return op.call.op == Op::kBroadcast ? op.call.output : op.pieces.own();
}

// Whether the call can only be executed after `rank` has posted, because that rank offers data or
// says where it receives data.
bool Engine::meets(const Operation& op, int rank) const {
  return rank != rank_ && (op.pieces.offer(rank) > 0 || op.shows_target);
}

// Whether `rank` accesses this rank's memory during the call's execution.
bool Engine::touched_by(const Operation& op, int rank) const {
  return rank != rank_ &&
         (op.pieces.gives_to(rank) || (op.pushed && op.pieces.taken_from(rank).bytes > 0));
}

// Waits for the descriptors, and takes the path that they allow.
bool Engine::meet(Operation& op) {
  const int size = region_.size();
  for (int r = 0; r < size; ++r) {
    if (!meets(op, r)) continue;
    if (!has_posted(op, r)) return false;
    check_descriptor(op, r);
  }
  bool offers_mapped = true;
  bool offers_reachable = true;
  bool all_mapped = true;
  for (int r = 0; r < size; ++r) {
    if (r != rank_ && !meets(op, r)) continue;  // its descriptor may still be missing
    const Memory memory = r == rank_ ? op.memory : region_.descriptor(r, op.number).memory;
    all_mapped &= memory == Memory::kMapped;
    if (op.pieces.offer(r) == 0) continue;
    offers_mapped &= memory == Memory::kMapped;
    // Ranks that differ in what an all_reduce may copy take the slots.
    offers_reachable &=
        op.call.op == Op::kAllReduce ? memory == Memory::kPrivate : memory != Memory::kStaged;
  }
  const bool copies = offers_reachable && may_copy(op.call.op, op.pieces.largest_offer());
  const bool half_mapped =  // the root's side of a broadcast only: better copied, from both sides
      op.shows_target && op.call.op == Op::kBroadcast && !all_mapped;
  if (offers_mapped || copies) {
    op.copied = copies && (!offers_mapped || half_mapped);
    op.pushed = op.shows_target && (op.copied || (op.call.op == Op::kBroadcast && all_mapped));
    if (!execute(op)) return false;
    op.phase = Operation::Phase::kLeaving;
    return true;
  }
  op.program = make_program(op.call, rank_, region_, tuning_.shares_from);
  op.own_rounds = op.program->rounds;
  op.phase = Operation::Phase::kStaged;
  return true;
}

// Moves this rank's share, without help from the peers. Returns false if the group is broken: the
// call will not end, and the next check throws.
bool Engine::execute(Operation& op) {
  // Either this rank sees that the group is broken, or the rank that breaks it sees that this one
  // is inside.
  own_.inside.store(1, std::memory_order_seq_cst);
  if (region_.header().failure.any()) {
    own_.inside.store(0, std::memory_order_release);
    return false;
  }
  std::string problem;
  int lost = -1;
  try {
    if (op.copied)
      execute_copied(op);
    else
      execute_mapped(op);
  } catch (const GroupBroke&) {
    own_.inside.store(0, std::memory_order_release);
    return false;
  } catch (const PeerLost& error) {
    problem = error.what();
    lost = error.rank();
  } catch (const Error& error) {
    problem = error.what();
  }
  own_.inside.store(0, std::memory_order_release);
  if (!problem.empty()) fail(Failure::kPeerLost, lost, problem);
  own_.executed.store(op.number, std::memory_order_seq_cst);
  doorbell_.ring();
  return true;
}

void Engine::execute_mapped(Operation& op) {
  for (int r = 0; r < region_.size(); ++r) {
    std::byte*& buffer = buffers_[static_cast<size_t>(r)];
    buffer = nullptr;
    if (op.pieces.offer(r) == 0 && !op.pushed) continue;
    const CallDescriptor& descriptor = region_.descriptor(r, op.number);
    buffer = r == rank_ ? const_cast<std::byte*>(shown_memory(op))
                        : peer_memory_->peer(r, {descriptor.window, descriptor.offset});
    LOCKSTEP_CHECK(buffer != nullptr, "a posted window is mapped");
  }
  if (op.call.op == Op::kAllReduce)
    all_reduce_mapped(op.call, rank_, buffers_);
  else if (op.pushed)
    broadcast_mapped(op.call, rank_, buffers_);
  else
    take_mapped(op.call, op.pieces, rank_, {buffers_.data(), buffers_.size()});
}

void Engine::execute_copied(Operation& op) {
  for (int r = 0; r < region_.size(); ++r) {
    if (!meets(op, r)) continue;
    const CallDescriptor& descriptor = region_.descriptor(r, op.number);
    addresses_[static_cast<size_t>(r)] = descriptor.address;
    targets_[static_cast<size_t>(r)] = descriptor.target;
  }
  const WatchedPeerMemory peer_memory(*peer_memory_, region_.header().failure);
  if (op.call.op == Op::kBroadcast)
    broadcast_copied(op.call, rank_, addresses_, targets_, peer_memory);
  else if (op.call.op == Op::kAllReduce)
    all_reduce_copied(op.call, rank_, addresses_, peer_memory, scratch_);
  else if (op.pushed)
    push_copied(op.call, op.pieces, rank_, targets_, peer_memory);
  else
    take_copied(op.call, op.pieces, rank_, addresses_, peer_memory, scratch_);
}

// Waits until no peer touches this rank's memory any more.
bool Engine::leave(Operation& op) {
  for (int r = 0; r < region_.size(); ++r) {
    if (!touched_by(op, r)) continue;
    if (region_.rank(r).executed.load(std::memory_order_acquire) < op.number) return false;
  }
  finish(op);
  return true;
}

// Whether peers were told the address of the call's memory.
bool Engine::exposes(const Operation& op) {
  return op.posted && !op.done && (op.memory != Memory::kStaged || op.shows_target);
}

// Whether the rank is currently accessing its peers' memory.
bool Engine::touched(int rank) const noexcept {
  return rank != rank_ && region_.rank(rank).inside.load(std::memory_order_seq_cst) != 0 &&
         !(is_dead_ && is_dead_(rank));
}

// Called after the group was broken: returns once no peer accesses this rank's memory. Waits for a
// stopped peer at most Tuning::quiesce_at_most; close() reports that.
void Engine::quiesce() noexcept {
  exposed_ |= channels_.exposes() || std::any_of(queue_.begin(), queue_.end(),
                                                 [](const auto& op) { return exposes(*op); });
  if (std::exchange(quiesced_, true)) return;
  const Deadline deadline = Deadline::after(tuning_.quiesce_at_most);
  for (int r = 0; r < region_.size(); ++r) {
    while (touched(r) && !deadline.expired()) ::sched_yield();
  }
}

}  // namespace lockstep::inline v0::rounds
