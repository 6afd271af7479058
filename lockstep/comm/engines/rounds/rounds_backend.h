// RoundsBackend: shared by local/ and shm/: a Backend over an Engine and the owner of the region's
// memory.
#pragma once

#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/rounds/engine.h"

namespace lockstep::inline v0::rounds {

// Capabilities of every backend that runs on an Engine, except name, authentication and processes.
Capabilities engine_capabilities();

class RoundsBackend final : public Backend {
 public:
  // `memory` owns the region that `region` views, and the objects that `is_dead` uses.
  // `peer_memory` may be null.
  RoundsBackend(Capabilities capabilities, std::shared_ptr<void> memory, Region region, int rank,
                std::unique_ptr<PeerMemory> peer_memory, IsDead is_dead, Tuning tuning = {});

  const Capabilities& capabilities() const override { return capabilities_; }
  std::unique_ptr<Request> start(const Call& call) override { return engine_.start(call); }
  void show(const Call& call) override { engine_.show(call); }
  void run(const Call& call, Deadline::Duration timeout) override { engine_.run(call, timeout); }
  SymmetricMemory allocate_symmetric(int64_t bytes) override {
    return peer_memory_ ? peer_memory_->allocate(bytes) : SymmetricMemory();
  }
  SymmetricMemory allocate_shared(int64_t bytes) override {
    return peer_memory_ ? peer_memory_->allocate_shared(bytes) : SymmetricMemory();
  }
  void progress() override { engine_.progress(); }
  void set_siblings(SiblingProgress* siblings) override { engine_.set_siblings(siblings); }
  bool lost(int rank) const override { return engine_.lost(rank); }
  Probe probe(int src, int tag) override { return engine_.probe(src, tag); }
  void abort(const Breakage& why) noexcept override { engine_.abort(why); }
  bool close() noexcept override { return engine_.close(); }
  void interrupt(const Breakage& why) noexcept override { engine_.abort(why); }

 private:
  Capabilities capabilities_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<PeerMemory> peer_memory_;
  Engine engine_;  // after memory_ and peer_memory_: it still uses them while it is destroyed
};

}  // namespace lockstep::inline v0::rounds
