// In which order a backward comes to units: the same on all ranks, whatever it reaches on each. Pure decisions; not
// used directly: see gathered_units.h.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::internal {

// A backward goes the forward's way back, and may leave units out: those whose output a rank's loss does not depend on.
// Other ranks need what this one has of them, and so it goes by them all the same.
class UnitPasses {
 public:
  explicit UnitPasses(size_t units) : waiting_(units, 0), passed_(units, false) {}

  // A forward has gone through the unit: a backward may come.
  void went(size_t unit);
  // A backward is at the unit. Those that it has left out on its way there, in order, and then this one.
  std::vector<size_t> until(size_t unit) const;
  // A backward has ended: what is left of the forward that it was in.
  std::vector<size_t> rest() const;
  // The backward goes by the last pass of all, if it is one of this unit.
  void pass(size_t unit);
  // The backward that has begun last has passed the unit, and none is to come.
  bool over(size_t unit) const { return passed_[unit] && waiting_[unit] == 0; }
  void begin_backward();
  // A step has been taken, and forwards without a backward get none any more.
  void clear();

 private:
  struct Pass {
    size_t unit;
    size_t forward;  // whose it is
  };
  std::vector<Pass> passes_;
  std::vector<size_t> waiting_;  // of each unit: its passes
  std::vector<bool> passed_;
  size_t forwards_ = 0;
  size_t returning_ = 0;  // the forward that a backward was in last
  bool turned_ = true;    // since the last went()
};

}  // namespace lockstep::internal
