// The order in which a backward passes units: the same on all ranks, whichever units it reaches on
// each. Pure; not used directly: see gathered_units.h.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::inline v0::internal {

// A backward goes back along the forward's path, and may leave out units on whose output a rank's
// loss does not depend. Other ranks need this one's part of them, so it passes them by all the
// same.
class UnitPasses {
 public:
  explicit UnitPasses(size_t units) : waiting_(units, 0), passed_(units, false) {}

  // A forward has gone through the unit, so a backward may follow.
  void went(size_t unit);
  // A backward is at the unit: returns the units that it has left out on its way, in order, and
  // then this one.
  std::vector<size_t> until(size_t unit) const;
  // A backward has ended: returns the rest of its forward's units.
  std::vector<size_t> rest() const;
  // The backward passes the last pass of all, if it belongs to this unit.
  void pass(size_t unit);
  // Whether the latest backward has passed the unit, and none is to come.
  bool over(size_t unit) const { return passed_[unit] && waiting_[unit] == 0; }
  void begin_backward();
  // A step has been taken, and forwards without a backward will not get one any more.
  void clear();

 private:
  struct Pass {
    size_t unit;
    size_t forward;  // its forward
  };
  std::vector<Pass> passes_;
  std::vector<size_t> waiting_;  // number of passes of each unit
  std::vector<bool> passed_;
  size_t forwards_ = 0;
  size_t returning_ = 0;  // the forward of the latest backward
  bool turned_ = true;    // since the last went()
};

}  // namespace lockstep::inline v0::internal
