// RoundsBackend: what local/ and shm/ share: a Backend over an Engine and whatever owns the
// region's memory.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/rounds/engine.h"

namespace lockstep::rounds {

// Capabilities of every backend that runs on an Engine, but for name, authentication and processes.
Capabilities engine_capabilities();

class RoundsBackend final : public Backend {
 public:
  // `memory` owns the region that `region` views, and whatever `is_dead` uses.
  RoundsBackend(Capabilities capabilities, std::shared_ptr<void> memory, Region region, int rank,
                IsDead is_dead);

  const Capabilities& capabilities() const override { return capabilities_; }
  std::unique_ptr<Request> start(const Call& call) override { return engine_.start(call); }
  void progress() override { engine_.progress(); }
  bool lost(int rank) const override { return engine_.lost(rank); }
  Probe probe(int src, int tag) override { return engine_.probe(src, tag); }
  void abort(const std::string& reason) noexcept override;

 private:
  Capabilities capabilities_;
  std::shared_ptr<void> memory_;
  Engine engine_;  // after memory_: it still uses the region while it is destroyed
};

}  // namespace lockstep::rounds
