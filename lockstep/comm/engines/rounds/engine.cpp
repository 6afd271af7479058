#include "lockstep/comm/engines/rounds/engine.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/comm/engines/rounds/operation.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rounds {
namespace {

uint64_t mixed(uint64_t history, uint64_t fingerprint) {
  return (history ^ fingerprint) * 0x9e3779b97f4a7c15ULL + 1;
}

bool is_message(const Call& call) {
  return call.op == Op::kSend || call.op == Op::kRecv;
}

}  // namespace

// T is an Operation or a Message: a type with a call that completes.
template <typename T>
class Engine::PendingRequest final : public Request {
 public:
  PendingRequest(Engine& engine, std::shared_ptr<T> pending)
      : engine_(engine), pending_(std::move(pending)) {}
  bool poll() override { return engine_.poll(pending_->done, pending_->call, ++polls_ % 64 == 0); }
  void wait(Deadline deadline) override { engine_.wait(pending_->done, pending_->call, deadline); }

 private:
  Engine& engine_;
  std::shared_ptr<T> pending_;
  int polls_ = 0;
};

Engine::Engine(Region region, int rank, const PeerMemory* peer_memory, IsDead is_dead,
               Tuning tuning)
    : region_(region),
      rank_(rank),
      own_(region.rank(rank)),
      peer_memory_(peer_memory),
      is_dead_(std::move(is_dead)),
      tuning_(tuning),
      channels_(make_channels()),
      ll_(region, rank),
      doorbell_(region, rank),
      offers_(static_cast<size_t>(region.size())),
      buffers_(static_cast<size_t>(region.size())),
      addresses_(static_cast<size_t>(region.size())),
      targets_(static_cast<size_t>(region.size())) {
  LOCKSTEP_CHECK(tuning.ll_up_to <= kLineCapacity, "the LL buffers hold that many bytes");
}

Channels Engine::make_channels() {
  if (peer_memory_ == nullptr || !peer_memory_->copies()) return {region_, rank_};
  return {region_, rank_,
          [this](int rank, uint64_t address, std::byte* to, int64_t bytes) {
            return pull(rank, address, to, bytes);
          },
          tuning_.copies_from};
}

Engine::~Engine() {
  close();
}

// Marks this rank as departed: peers that wait for it get PeerLost.
bool Engine::close() noexcept {
  const auto inside = [this] {
    bool any = false;
    for (int r = 0; r < region_.size(); ++r) any |= touched(r);
    return exposed_ && any;
  };
  if (std::exchange(closed_, true)) return !inside();
  const bool pending =
      std::any_of(queue_.begin(), queue_.end(), [](const auto& op) { return exposes(*op); });
  if (pending && !broken_) {
    abort({Failure::kPeerLost, rank_,
           "rank " + std::to_string(rank_) + " left the group while a call was under way"});
  }
  own_.departed.store(1, std::memory_order_seq_cst);
  doorbell_.ring();
  if (pending || channels_.exposes()) quiesce();
  return !inside();
}

std::unique_ptr<Request> Engine::start(const Call& call) {
  if (broken_) std::rethrow_exception(broken_);
  check_aborted();
  if (is_message(call)) {
    auto message = channels_.post(call);
    progress();
    return std::make_unique<PendingRequest<Message>>(*this, std::move(message));
  }
  auto kept = std::make_shared<KeptOperation>(call, rank_, region_.size());
  std::shared_ptr<Operation> op(kept, &kept->operation);
  enroll(*op);
  queue_.push_back(op);
  progress();
  return std::make_unique<PendingRequest<Operation>>(*this, std::move(op));
}

void Engine::run(const Call& call, Deadline::Duration timeout) {
  const bool shown = std::exchange(shown_, false);
  if (is_message(call)) return start(call)->wait(Deadline::after(timeout));
  if (broken_) std::rethrow_exception(broken_);
  // A call that has been shown may be complete on the other ranks, which then continue.
  if (!shown) check_aborted();
  trace::CallRecord made;
  if (call.record == nullptr) made = make_record(call);
  Operation op(call, call.record != nullptr ? *call.record : made, rank_, region_.size());
  op.shown = shown;
  enroll(op);
  // A small call for which all peers' lines are there needs neither the time nor the queue.
  const bool at_once = queue_.empty() && op.through_ll && op.posted;
  if (at_once) {
    show_lines(op);
    if (exchange_lines(op)) return;  // also rings the doorbell
    ring_for_ll();
  }
  queue_.push_back(std::shared_ptr<Operation>(std::shared_ptr<void>(), &op));  // not owned
  try {
    wait(op.done, op.call, Deadline::after(timeout));
  } catch (...) {
    if (!broken_) broken_ = std::current_exception();
    quiesce();
    queue_.clear();
    throw;
  }
}

void Engine::progress() {
  if (broken_) return;
  try {
    advance();
  } catch (...) {
    // The error belongs to the caller that waits; fail() has recorded it in broken_.
    if (!broken_) broken_ = std::current_exception();
  }
}

// Gives the call its number and makes the decisions that this rank can make alone.
void Engine::enroll(Operation& op) {
  const Call& call = op.call;
  op.number = ++numbered_;
  op.history = history_;
  history_ = mixed(history_, op.record.fingerprint);

  op.through_ll = through_ll(op.pieces);
  if (!op.through_ll) {
    const bool offered = Pieces::offered(call);
    const int64_t largest = offered ? op.pieces.largest_offer() : 0;
    LOCKSTEP_CHECK(call.op != Op::kAllReduce || call.input == call.output,
                   "all_reduce works in place");
    const int64_t offer = offered ? op.pieces.offer(rank_) : 0;
    const bool copies = offered && may_copy(call.op, largest);
    const bool mapped = offered && peer_memory_ != nullptr && tuning_.mapped;
    const bool parts = call.op == Op::kAllGather || call.op == Op::kAllToAll;
    op.shows_target = call.op == Op::kBroadcast
                          ? (copies || mapped) && largest >= tuning_.copies_from
                          : copies && parts && largest >= tuning_.pushes_from;
    if (offer > 0 || (op.shows_target && call.op == Op::kBroadcast)) {
      std::optional<Window> window;
      if (mapped)
        window = peer_memory_->find(shown_memory(op), call.op == Op::kBroadcast ? largest : offer);
      if (window) {
        op.memory = Memory::kMapped;
        op.window = *window;
      } else if (copies) {
        op.memory = Memory::kPrivate;
      }
    }
    op.surely_staged = op.memory == Memory::kStaged && (offer > 0 || !(mapped || copies));
    if (op.surely_staged) {
      op.program = make_program(call, rank_, region_, tuning_.shares_from);
      op.own_rounds = op.program->rounds;
    }
  }
  if (numbered_ == own_.posted.load(std::memory_order_relaxed) + 1) post(op);
}

// Whether `bytes` of memory that is not mapped may be copied to and from the peers' memory.
bool Engine::may_copy(Op op, int64_t bytes) const {
  return peer_memory_ != nullptr && peer_memory_->copies() &&
         bytes >= (op == Op::kAllReduce ? tuning_.all_reduce_copies_from : tuning_.copies_from);
}

// False while the slowest rank may still need the descriptor that the call's would overwrite.
bool Engine::may_post(uint64_t number) {
  if (number <= all_done_ + kDescriptors) return true;
  uint64_t slowest = UINT64_MAX;
  for (int r = 0; r < region_.size(); ++r)
    slowest = std::min(slowest, region_.rank(r).done.load(std::memory_order_acquire));
  all_done_ = slowest;
  return number <= all_done_ + kDescriptors;
}

bool Engine::post(Operation& op) {
  if (!may_post(op.number)) return false;
  CallDescriptor& descriptor = region_.descriptor(rank_, op.number);
  // A rank that looks far back for an error's text copies a record, and then knows by `posted`
  // whether it has been overwritten: the stores below must not overtake the former call's `posted`
  // (posted(), engine_wait.cpp). On x86 no store overtakes another, and this is no instruction.
  std::atomic_thread_fence(std::memory_order_release);
  descriptor.fingerprint = op.record.fingerprint;
  descriptor.history = op.history;
  descriptor.offset = op.window.offset;
  descriptor.window = op.window.id;
  descriptor.memory = op.memory;
  descriptor.rounds = op.own_rounds;
  descriptor.address = 0;
  if (op.memory != Memory::kStaged)
    descriptor.address = reinterpret_cast<uint64_t>(op.pieces.own());
  descriptor.target = op.shows_target ? reinterpret_cast<uint64_t>(op.call.output) : 0;
  descriptor.record = op.record;
  if (op.through_ll) {
    // No rank waits for this descriptor: the LL buffers announce the call.
    descriptor.number.store(op.number, std::memory_order_release);
    own_.posted.store(op.number, std::memory_order_release);
  } else {
    own_.posted.store(op.number, std::memory_order_release);
    descriptor.number.store(op.number, std::memory_order_seq_cst);
    doorbell_.ring();
  }
  op.posted = true;
  return true;
}

bool Engine::advance() {
  bool moved = false;
  if (channels_.busy()) {
    try {
      moved = channels_.progress();
    } catch (const Mismatch& error) {
      fail(Failure::kMismatch, -1, error.what());
    } catch (const SystemError& error) {  // memory that must exist could not be accessed
      fail(Failure::kPeerLost, -1, error.what());
    }
    if (moved) doorbell_.ring();
  }
  while (!queue_.empty()) {
    Operation& op = *queue_.front();
    moved |= advance(op);
    if (!op.done) break;
    queue_.pop_front();
  }
  // Peers may take the data of later calls as soon as these are posted.
  for (size_t i = 1; i < queue_.size(); ++i) {
    if (!queue_[i]->posted && !post(*queue_[i])) break;
  }
  return moved;
}

bool Engine::advance(Operation& op) {
  using Phase = Operation::Phase;
  bool moved = false;
  for (;;) {
    const Phase before = op.phase;
    switch (op.phase) {
      case Phase::kWaitingTurn:
        if (!op.posted && !post(op)) return moved;
        if (op.through_ll) {
          show_lines(op);
          ring_for_ll();
        } else if (op.surely_staged) {
          op.phase = Phase::kStaged;
        } else {
          op.phase = Phase::kMeeting;
        }
        break;
      case Phase::kLines:
        if (!exchange_lines(op)) return moved;
        break;
      case Phase::kMeeting:
        if (!meet(op)) return moved;
        break;
      case Phase::kStaged:
        moved |= stage(op);
        break;
      case Phase::kLeaving:
        if (!leave(op)) return moved;
        break;
    }
    if (op.done) return true;
    if (op.phase == before) return moved;
    moved = true;
  }
}

void Engine::finish(Operation& op) {
  op.done = true;
  if (!op.through_ll && op.number % (kDescriptors / 4) != 0) {
    own_.done.store(op.number, std::memory_order_release);
    return;
  }
  own_.done.store(op.number, std::memory_order_seq_cst);
  doorbell_.ring();  // for ranks that wait for this rank's LL buffers, or are kDescriptors ahead
}

bool Engine::stage(Operation& op) {
  if (op.produced == 0 && op.consumed == 0) {
    op.base = next_round_;
    op.total_known = !op.program->dynamic;
  }
  bool moved = false;
  for (;;) {
    const bool produced = produce(op);
    const bool combined = combine(op);
    const bool consumed = consume(op);
    if (!produced && !combined && !consumed) break;
    moved = true;
  }
  if (op.consumed == op.program->rounds && op.total_known) {
    next_round_ = op.base + static_cast<uint64_t>(op.program->rounds);
    finish(op);
    moved = true;
  }
  return moved;
}

bool Engine::produce(Operation& op) {
  if (op.produced >= op.program->rounds) return false;
  const uint64_t round = op.base + static_cast<uint64_t>(op.produced);
  if (!slot_is_free(round)) return false;
  if (op.program->produce && op.produced < op.own_rounds)
    op.program->produce(op.produced, op.program->slots.at(rank_, round));
  own_.published.store(round + 1, std::memory_order_seq_cst);
  doorbell_.ring();
  ++op.produced;
  return true;
}

// A slot may be written again once every rank has read its content of kSlots rounds ago.
bool Engine::slot_is_free(uint64_t round) {
  if (round < slowest_ + kSlots) return true;
  uint64_t slowest = UINT64_MAX;
  for (int r = 0; r < region_.size(); ++r)
    slowest = std::min(slowest, region_.rank(r).consumed.load(std::memory_order_acquire));
  slowest_ = slowest;
  return round < slowest_ + kSlots;
}

bool Engine::reads(const Operation& op, int rank) const {
  if (rank == rank_) return false;
  switch (op.program->reads) {
    case Reads::kNobody:
      return false;
    case Reads::kRoot:
      return rank == op.call.root;
    case Reads::kEverybody:
      return true;
  }
  return false;
}

// Whether the ranks that this one reads have written their slots of the operation's round `round`.
bool Engine::slots_are_written(const Operation& op, int64_t round) {
  for (int r = 0; r < region_.size(); ++r) {
    if (!reads(op, r)) continue;
    if (round == 0) {
      if (!has_posted(op, r)) return false;
      check_descriptor(op, r);
    }
    if (region_.rank(r).published.load(std::memory_order_acquire) <=
        op.base + static_cast<uint64_t>(round))
      return false;
  }
  return true;
}

bool Engine::combine(Operation& op) {
  if (!op.program->combine || op.combined >= op.produced || !slots_are_written(op, op.combined))
    return false;
  const uint64_t round = op.base + static_cast<uint64_t>(op.combined);
  op.program->combine(op.combined, round);
  ++op.combined;
  own_.combined.store(round + 1, std::memory_order_seq_cst);
  doorbell_.ring();
  return true;
}

bool Engine::consume(Operation& op) {
  const uint64_t round = op.base + static_cast<uint64_t>(op.consumed);
  const int size = region_.size();
  if (op.program->combine) {
    if (op.consumed >= op.combined) return false;
    for (int r = 0; r < size; ++r) {
      if (reads(op, r) && region_.rank(r).combined.load(std::memory_order_acquire) <= round)
        return false;
    }
  } else if (op.consumed >= op.produced || !slots_are_written(op, op.consumed)) {
    return false;
  }
  if (!op.total_known) {
    for (int r = 0; r < size; ++r)
      op.program->rounds = std::max(op.program->rounds, region_.descriptor(r, op.number).rounds);
    op.total_known = true;
  }
  if (op.program->consume) op.program->consume(op.consumed, round);
  ++op.consumed;
  own_.consumed.store(round + 1, std::memory_order_seq_cst);
  doorbell_.ring();
  return true;
}

}  // namespace lockstep::inline v0::rounds
