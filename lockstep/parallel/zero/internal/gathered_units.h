// Units of a model whose parameters a host has in full only while it computes with them: stage 3
// among several hosts. Not used directly: see zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/work.h"
#include "lockstep/parallel/zero/internal/host_copy.h"
#include "lockstep/parallel/zero/internal/unit_passes.h"

namespace lockstep::inline v0::internal {

// The order of units: that of the previous pass or, at first, their order in the model.
class UnitOrder {
 public:
  enum class Pass : uint8_t { kForward, kBackward };

  explicit UnitOrder(size_t units);
  // This unit has been fetched; returns the one that is likely to be fetched next.
  std::optional<size_t> after(size_t unit, Pass pass);
  // A step has been taken; returns the unit that is likely to be fetched first.
  std::optional<size_t> after_step();

 private:
  struct Step {
    size_t unit;
    Pass pass;
  };
  size_t index(const Step& step) const {
    return step.unit + (step.pass == Pass::kForward ? 0 : units_);
  }

  size_t units_;
  std::vector<std::optional<size_t>> next_;  // of each unit in each pass
  std::optional<Step> last_;                 // none since the step
  std::optional<size_t> first_;
  bool stepped_ = false;
};

// The parameters keep their addresses, but reading one while it is away throws an exception that
// names the unit. The values that other hosts have written arrive before a unit computes, and its
// pages are returned to the system once all ranks of the host have finished with it: they
// synchronise whenever a unit is fetched. Every rank of the group calls need() and done() in the
// same order. To check this, ranks compare their paths through the model: within a host by
// everything that they did, between hosts by the unit that is fetched (Mismatch names the units).
// On devices a backward may leave out units on some ranks: these pass them by, fetching them with
// the others without using them (UnitPasses).
class GatheredUnits {
 public:
  using Pass = UnitOrder::Pass;
  struct Unit {
    std::string name;
    std::vector<KeptFlat> flats;         // its parameters' buckets
    std::vector<at::Tensor> parameters;  // the module's tensors, which use that memory
  };
  // No unit is present at first. `keep`: a unit stays from its forward to the end of its backward.
  // `copy` must outlive this.
  GatheredUnits(HostCopy& copy, std::vector<Unit> units, bool keep);
  // Waits for prefetched units, whose memory must not be freed while it is written to.
  ~GatheredUnits();
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  size_t size() const { return units_.size(); }
  const std::string& name(size_t unit) const { return units_[unit].unit.name; }
  bool here(size_t unit) const { return units_[unit].here; }
  // Whether all exchanges of ranks in a backward must have the same order on all of them.
  bool in_order() const { return copy_.apart(); }
  // With in_order(): called at the same places of a backward on all ranks, before the next unit is
  // fetched and where the backward has ended.
  void on_turn(std::function<void(bool ended)> turn) { turn_ = std::move(turn); }
  // Whether the backward has passed the unit and none will again: its gradients are complete on all
  // ranks.
  bool over(size_t unit) const { return passes_.over(unit); }
  void begin_backward() { passes_.begin_backward(); }
  // No backward will follow the forwards computed so far.
  void forget_forwards();

  // The unit is whole when this returns, until the matching done().
  void need(size_t unit, Pass pass);
  // `stays`: a backward will come through it.
  void done(size_t unit, Pass pass, bool stays = false);
  // need() for a backward that has reached the unit's output.
  void reach(size_t unit);
  // A backward has ended, or a failed one has been detected: no unit is in use.
  void end_backward(bool threw);
  // Fetches all units until let_all(): each rank then uses them in its own order, as often as
  // needed.
  void need_all();
  void let_all() noexcept;
  // Makes the values written into parameters since need_all() the parameters' values; let_all()
  // does it too.
  void take_back();
  // Whether this rank has all units now, through need_all().
  bool held() const { return holders_ > 0; }
  // Called before this host's parameters change, when no rank reads them any more.
  void before_change();
  // The hosts have new values for each other, and all ranks have synchronised since
  // before_change(): no unit is whole any more.
  void changed();

  // Bytes beside those that the host keeps: of the largest unit and the prefetched one, or of all
  // that stay.
  int64_t most_bytes() const;
  // Seconds so far, for units that were not there in time.
  double waiting() const { return waiting_; }

 private:
  struct State {
    Unit unit;
    bool here = false;
    bool stays = false;
    int users = 0;
    std::vector<Work> works;  // fetches in progress, on the rank that fetches
    // Each parameter's memory, and its storage while it is away.
    std::vector<c10::Storage> homes, nowhere;
  };

  void go_by(const std::vector<size_t>& units, bool ended);
  void bring(size_t unit, Pass pass);
  void start(size_t unit);
  void release(State& state);
  void put_back(State& state);
  void finish_coming();
  void went(uint64_t step);  // records a step of this rank's path

  HostCopy& copy_;
  std::vector<State> units_;
  UnitOrder order_;
  UnitPasses passes_;
  std::function<void(bool)> turn_;
  bool keep_;
  std::vector<size_t> coming_;     // being fetched; the same on all ranks
  int holders_ = 0;                // of all units
  bool crowded_ = false;           // units are present since let_all() that are not needed
  uint64_t way_ = 0, places_ = 0;  // a hash of the rank's path through the units
  double waiting_ = 0;
};

}  // namespace lockstep::inline v0::internal
