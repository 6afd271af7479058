// Faults: one rank of a group dies, stops, leaves, is late or falls out of step, and every other
// rank must get the right error in time, which blames only that rank. One table for all
// backends; a backend is added by a line in comm/faults_mp_test.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// What a backend is expected to be able to tell.
struct FaultTraits {
  bool names_lost = true;   // PeerLost carries the rank; else -1 will do
  bool names_calls = true;  // different calls are Mismatch; else Timeout or PeerLost will do
  bool names_late = true;   // Timeout names the late rank; else none, or one that waits for it,
                            // will do
};

// The error that the other ranks must get.
enum class FaultError { kPeerLost, kTimeout, kMismatch };

// Rank kFaultyRank of kFaultSize does `fault`; the others do `others`, which end in the error.
inline constexpr int kFaultSize = 3;
inline constexpr int kFaultyRank = 1;  // the rank that does the fault

// A fault, and what the others must see.
struct Fault {
  std::string name;
  FaultError error = FaultError::kPeerLost;
  std::function<void(Communicator&)> fault;
  std::function<void(Communicator&)> others;
  bool needs_process = false;   // it ends or stops the whole process
  int end = 0;                  // of the faulty rank, as in expect_lone_ranks()
  bool faulty_sees_it = false;  // the faulty rank goes on and must get the error too
  bool at_deadline = false;     // the error comes at the communicator's time-out, not before
  bool long_only = false;       // of processes only where LOCKSTEP_LONG_TESTS is 1
  std::vector<std::string> words =
      {};  // in the message on every rank, where the backend names calls
};

// Those of the suite.
LOCKSTEP_API const std::vector<Fault>& all_faults();
// Without those that are long_only, unless they are asked for.
LOCKSTEP_API const std::vector<Fault>& faults();

// The time-out that the communicators of a fault must have.
LOCKSTEP_API std::chrono::nanoseconds fault_timeout(const Fault& fault);

// This rank's part of the fault. Returns what was not as expected, in lines; empty: all well.
// Collective. `limit`: from the fault to the error.
LOCKSTEP_API std::string run_fault(Communicator& comm, const Fault& fault,
                                   const FaultTraits& traits,
                                   std::chrono::nanoseconds limit = std::chrono::seconds(2));

}  // namespace lockstep::inline v0::testing
