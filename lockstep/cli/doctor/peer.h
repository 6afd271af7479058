// `lockstep doctor --listen` and `--peer`: two hosts prove to each other that both ways between
// them work, with the job's secret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/doctor/findings.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"

namespace lockstep::cli {

// Waits at `port` (0: a free one) for one visitor that knows the secret; others are refused and
// logged. Says on stderr where it listens. `interface`, unless empty, is the interface, or its
// address, to listen at. A visitor that does not come is a problem among the findings.
// Throws: InvalidArgument, SystemError (the port is taken).
std::vector<Finding> listen_for_peer(uint16_t port, const std::string& interface,
                                     const Secret& secret, Deadline deadline);

// Visits such a listener: whether it is reached, how long a round trip takes, how far the clocks
// differ, whether large messages pass, and by which of this host's addresses it reaches back.
// Throws: InvalidArgument for names that do not resolve.
std::vector<Finding> visit_peer(const HostPort& peer, const std::string& interface,
                                const Secret& secret, Deadline deadline);

// The clock's difference, and how much of it is uncertain, from readings around a round trip.
struct ClockReading {
  int64_t sent = 0, there = 0, back = 0;  // ns; `there` by the other clock
};
struct ClockOffset {
  double seconds = 0;      // the other clock is ahead by so much
  double uncertainty = 0;  // +-
  double round_trip = 0;   // the median one, seconds
};
// From at least one reading. Pure.
ClockOffset clock_offset(std::vector<ClockReading> readings);

}  // namespace lockstep::cli
