// `lockstep doctor --listen` and `--peer`: two hosts test both directions between them, with the
// job's secret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/doctor/findings.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"

namespace lockstep::inline v0::cli {

// Waits at `port` (0: a free one) for one visitor that knows the secret; others are refused and
// logged. It prints its address on stderr. `interface`, unless empty, is the interface to listen
// at, or its address. If no visitor comes, that is a problem among the findings.
// Throws: InvalidArgument, SystemError (the port is taken).
std::vector<Finding> listen_for_peer(uint16_t port, const std::string& interface,
                                     const Secret& secret, Deadline deadline);

// Visits such a listener. The findings say whether it is reached, how long a round trip takes, how
// far the clocks differ, whether large messages pass, and by which of this host's addresses the
// listener reaches back.
// Throws: InvalidArgument for names that do not resolve.
std::vector<Finding> visit_peer(const HostPort& peer, const std::string& interface,
                                const Secret& secret, Deadline deadline);

// The readings of both clocks around a round trip.
struct ClockReading {
  int64_t sent = 0, there = 0, back = 0;  // ns; `there` by the other clock
};
struct ClockOffset {
  double seconds = 0;      // the other clock is ahead by this much
  double uncertainty = 0;  // in both directions, seconds
  double round_trip = 0;   // the median, seconds
};
// Computes the clocks' difference. Pure.
// Requires: a reading.
ClockOffset clock_offset(std::vector<ClockReading> readings);

}  // namespace lockstep::inline v0::cli
