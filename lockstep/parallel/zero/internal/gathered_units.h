// Units of a model whose parameters a host has whole only while it computes with them: stage 3 among
// several hosts. Not used directly: see zero_optimizer.h.
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

namespace lockstep::internal {

// Which unit follows which: as in the pass before, or, at first, as they stand in the model.
class UnitOrder {
 public:
  enum class Pass : uint8_t { kForward, kBackward };

  explicit UnitOrder(size_t units);
  // This one has been fetched; the one that is likely to be fetched next.
  std::optional<size_t> after(size_t unit, Pass pass);
  // A step has been taken; the one that is likely to be fetched first.
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

// The parameters keep their addresses, but whoever reads one while it is away gets an exception that names
// the unit, not what lies there. What other hosts have written of them comes before a unit
// computes, and its pages go back to the system once all ranks of the host are beyond it: they meet
// whenever a unit comes. Every rank of the group calls need() and done() in the same order, for which its
// way through the model is compared: within a host by all that it did, between hosts by the unit that is
// fetched (Mismatch names the units). On devices a backward may leave units out on some ranks: they go by them, fetch
// them with the others, and have no use for them (UnitPasses).
class GatheredUnits {
 public:
  using Pass = UnitOrder::Pass;
  struct Unit {
    std::string name;
    std::vector<KeptFlat> flats;         // its parameters' buckets
    std::vector<at::Tensor> parameters;  // the module's tensors, whose memory is there
  };
  // None is here at first. `keep`: from a forward to the end of its backward a unit stays. `copy` must outlive this.
  GatheredUnits(HostCopy& copy, std::vector<Unit> units, bool keep);
  // Waits for what was fetched ahead: memory that is written to must not go.
  ~GatheredUnits();
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  size_t size() const { return units_.size(); }
  const std::string& name(size_t unit) const { return units_[unit].unit.name; }
  bool here(size_t unit) const { return units_[unit].here; }
  // Whether all that ranks exchange in a backward has to come in one order on all of them.
  bool in_order() const { return copy_.apart(); }
  // Where they are in_order(): called at the same places of a backward on all ranks, before the next unit is fetched,
  // and where the backward has ended.
  void on_turn(std::function<void(bool ended)> turn) { turn_ = std::move(turn); }
  // The backward has come through the unit, and none will: its gradients are there on all ranks.
  bool over(size_t unit) const { return passes_.over(unit); }
  void begin_backward() { passes_.begin_backward(); }
  // No backward will come to what forwards have computed so far.
  void forget_forwards();

  // The unit is whole when it returns, until as many done().
  void need(size_t unit, Pass pass);
  // `stays`: a backward will come through it.
  void done(size_t unit, Pass pass, bool stays = false);
  // need() of a backward that has come to the unit's output.
  void reach(size_t unit);
  // A backward has ended, or one that threw has been found out: nobody computes.
  void end_backward(bool threw);
  // All units, until let_all(): each rank then takes its own way through them, as often as it likes.
  void need_all();
  void let_all() noexcept;
  // What was written into parameters since need_all() is what they are; let_all() does it too.
  void take_back();
  // Whether this rank has all units now, by need_all().
  bool held() const { return holders_ > 0; }
  // Before this host's parameters change: nobody reads them after that.
  void before_change();
  // The hosts have new values for each other, and all ranks have met since before_change(): nothing is
  // whole any more.
  void changed();

  // Bytes beside what the host keeps: of the largest unit and the one that is fetched ahead; of all that stay.
  int64_t most_bytes() const;
  double waiting() const { return waiting_; }  // seconds so far, for what was not there in time

 private:
  struct State {
    Unit unit;
    bool here = false;
    bool stays = false;
    int users = 0;
    std::vector<Work> works;  // of what is on its way, on the rank that fetches
    std::vector<c10::Storage> homes,
        nowhere;  // of each parameter: where it lies; what it has while away
  };

  void go_by(const std::vector<size_t>& units, bool ended);
  void bring(size_t unit, Pass pass);
  void start(size_t unit);
  void release(State& state);
  void put_back(State& state);
  void finish_coming();
  void went(uint64_t step);  // remembers it as a step of this rank's way

  HostCopy& copy_;
  std::vector<State> units_;
  UnitOrder order_;
  UnitPasses passes_;
  std::function<void(bool)> turn_;
  bool keep_;
  std::vector<size_t> coming_;     // on their way; the same on all ranks
  int holders_ = 0;                // of all units
  bool crowded_ = false;           // units are here since let_all() that nobody needs
  uint64_t way_ = 0, places_ = 0;  // a rank's way through the units
  double waiting_ = 0;
};

}  // namespace lockstep::internal
