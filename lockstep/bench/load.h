// What other processes took of the processors during a measurement.
#pragma once

#include <string_view>

#include "lockstep/comm/communicator.h"

namespace lockstep::bench {

// From the first line of /proc/stat: seconds in which some processor worked, or was taken away by
// the host below a virtual machine; summed over processors. Pure. 0 if it is no such line.
double busy_seconds(std::string_view stat, double ticks_per_second);

// How many processors' worth of work was done by others than this job, since construction.
class LoadMeter {
 public:
  LoadMeter();
  // Collective over `comm`, whose ranks are all of one host; 0 where /proc/stat cannot be read.
  double others(Communicator& comm) const;

 private:
  double busy_;
  double own_;
  double wall_;
};

}  // namespace lockstep::bench
