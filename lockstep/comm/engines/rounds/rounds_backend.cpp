#include "lockstep/comm/engines/rounds/rounds_backend.h"

#include "lockstep/comm/engines/rounds/region.h"

namespace lockstep::inline v0::rounds {

Capabilities engine_capabilities() {
  Capabilities c;
  c.deterministic = true;
  c.rank_order = true;
  c.float32_accumulation = true;
  c.tags = true;
  c.probe = true;
  c.ops.fill(true);
  c.v_ops.fill(true);
  c.move_dtypes = all_dtypes();
  c.reduce_dtypes = all_dtypes();
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (is_valid_reduction(op, at::kFloat)) c.float_reduce_ops |= bit(op);
    if (is_valid_reduction(op, at::kInt)) c.integer_reduce_ops |= bit(op);
    if (is_valid_reduction(op, at::kBool)) c.bool_reduce_ops |= bit(op);
  }
  return c;
}

RoundsBackend::RoundsBackend(Capabilities capabilities, std::shared_ptr<void> memory, Region region,
                             int rank, std::unique_ptr<PeerMemory> peer_memory, IsDead is_dead,
                             Tuning tuning)
    : capabilities_(std::move(capabilities)),
      memory_(std::move(memory)),
      peer_memory_(std::move(peer_memory)),
      engine_(region, rank, peer_memory_.get(), std::move(is_dead), tuning) {}

}  // namespace lockstep::inline v0::rounds
