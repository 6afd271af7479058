// SiblingProgress: the other communicators of a rank's job, as an engine sees them. A wait in one
// engine also progresses the pending operations of the others, since ranks may wait in two groups
// in opposite orders. Not a public header.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline v0 {

struct Call;

class SiblingProgress {
 public:
  virtual ~SiblingProgress() = default;
  // Whether the siblings have pending operations. Costs one load.
  virtual bool pending() const noexcept = 0;
  // Progresses them without blocking.
  virtual void move() noexcept = 0;
  // Called now and then by a long wait for a collective. `awaited`: the ranks of the group that it
  // needs; `moved`: whether the engine has made any progress since the last call. Returns the text
  // for a Mismatch if those ranks wait for this one in other groups, and "" if nothing is known to
  // be wrong.
  virtual std::string report_wait(const Call& call, const std::vector<int>& awaited,
                                  bool moved) noexcept = 0;
};

// Operations on other communicators cannot wake this wait; it therefore sleeps at most this long
// while any are pending.
inline constexpr auto kSiblingNap = std::chrono::microseconds(200);

// Progresses the siblings' pending operations. Returns whether there are any.
inline bool progress_siblings(SiblingProgress* siblings) noexcept {
  if (siblings == nullptr || !siblings->pending()) return false;
  siblings->move();
  return true;
}

}  // namespace lockstep::inline v0
