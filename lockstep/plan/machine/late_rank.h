// How long ranks wait for the slowest of them. Pure.
//
// The time that a rank takes is taken as a random walk: after `t` seconds of computation ranks are apart by a standard
// deviation of jitter * sqrt(t). Each time they wait for each other it begins anew, so that many short parts cost more than
// one long part: k waits in t seconds cost sqrt(k) times what one does.
#pragma once

#include "lockstep/core/export.h"

namespace lockstep::inline v0::plan {

// The expected largest of so many standard normal values, less their mean: 0 for one, 0.59 for two, 1.05 for four. Blom's
// approximation (Statistical Estimates and Transformed Beta-Variables, 1958).
LOCKSTEP_API double expected_largest(int ranks);

// The seconds that ranks wait in all, where they wait `waits` times in `seconds` of computation. `jitter` is in square roots
// of seconds (Stack::jitter).
LOCKSTEP_API double late_time(double jitter, double seconds, double waits, int ranks);

}  // namespace lockstep::inline v0::plan
