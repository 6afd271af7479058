// Elsewhere: the other communicators of a rank's job, as an engine sees them. A wait in one engine
// moves what is under way in the others too: ranks may wait in two groups in opposite orders. Not a
// public header.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

struct Call;

class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  // Whether anything is under way there. Costs one load.
  virtual bool pending() const noexcept = 0;
  // Moves it without blocking.
  virtual void move() noexcept = 0;
  // To be called now and then by a wait for a collective that lasts. `awaited`: ranks of the group
  // without which it cannot go on; `moved`: whether anything has moved in the engine since the last
  // time. What is wrong, for a Mismatch, if those ranks wait in other groups for this one; "":
  // nothing that is known.
  virtual std::string stand(const Call& call, const std::vector<int>& awaited,
                            bool moved) noexcept = 0;
};

// What is under way elsewhere rings nobody who sleeps here: so long may a wait sleep meanwhile.
inline constexpr auto kElsewhereNap = std::chrono::microseconds(200);

// Moves what is under way elsewhere, if anything is; whether it is.
inline bool move_elsewhere(Elsewhere* elsewhere) noexcept {
  if (elsewhere == nullptr || !elsewhere->pending()) return false;
  elsewhere->move();
  return true;
}

}  // namespace lockstep
