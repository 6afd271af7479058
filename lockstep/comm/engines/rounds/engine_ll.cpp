// Engine: small calls, whose data travels through LL buffers.
#include "lockstep/comm/engines/rounds/direct.h"
#include "lockstep/comm/engines/rounds/operation.h"

namespace lockstep::inline v0::rounds {

bool Engine::through_ll(const Pieces& pieces) const {
  return Pieces::offered(pieces.call()) && pieces.largest_offer() <= tuning_.ll_up_to;
}

// Does everything that run() does for a small call, except writing its lines; it can wait until the
// lines travel.
void Engine::show(const Call& call) {
  const bool message = call.op == Op::kSend || call.op == Op::kRecv;
  if (message || broken_ || !queue_.empty() || region_.header().failure.any()) return;
  const Pieces pieces(call, rank_, region_.size());
  if (!through_ll(pieces) || !may_post(numbered_ + 1)) return;
  ll_.write(fingerprint(call) ^ history_, pieces.own(), pieces.offer(rank_));
  shown_ = true;
}

void Engine::show_lines(Operation& op) {
  if (!op.shown)
    ll_.write(op.record.fingerprint ^ op.history, op.pieces.own(), op.pieces.offer(rank_));
  op.phase = Operation::Phase::kLines;
}

// Wakes ranks that fell asleep before this rank's LL buffers were written. Their flags were stored
// with release alone; after the fence, as Doorbell::announce() has one, either this rank sees the
// sleeper or the sleeper sees the flags.
void Engine::ring_for_ll() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  doorbell_.ring();
}

bool Engine::exchange_lines(Operation& op) {
  const int size = region_.size();
  for (; op.ready < size; ++op.ready) {
    if (op.ready != rank_ && !ll_.ready(op.ready, op.pieces.offer(op.ready))) return false;
  }
  if (op.call.output != nullptr) take_lines(op);
  ll_.end();
  finish(op);
  return true;
}

void Engine::take_lines(const Operation& op) {
  const int size = region_.size();
  const auto stride = static_cast<size_t>(Slots::rounded_up(op.pieces.largest_offer()));
  if (scratch_.size() < static_cast<size_t>(size) * stride)
    scratch_.resize(static_cast<size_t>(size) * stride);
  for (int r = 0; r < size; ++r) {
    const int64_t bytes = op.pieces.offer(r);
    offers_[static_cast<size_t>(r)] =
        bytes == 0   ? nullptr
        : r == rank_ ? op.pieces.own()
                     : ll_.read(r, bytes, scratch_.data() + static_cast<size_t>(r) * stride);
  }
  take_mapped(op.call, op.pieces, rank_, offers_);
}

}  // namespace lockstep::inline v0::rounds
