// The processor time that other processes used during a measurement.
#pragma once

#include <string_view>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::bench {

// Reads from the first line of /proc/stat the seconds in which some processor worked, or was taken
// away by the host below a virtual machine, summed over processors. 0 for another line. Pure.
double busy_seconds(std::string_view stat, double ticks_per_second);

// Counts the processors that processes outside this job have kept busy since construction.
class LoadMeter {
 public:
  LoadMeter();
  // 0 where /proc/stat cannot be read.
  // Requires: all ranks of `comm` are on one host.
  // Collective: all ranks of `comm` call it.
  double others(Communicator& comm) const;

 private:
  double busy_;
  double own_;
  double wall_;
};

}  // namespace lockstep::inline v0::bench
