// SideChannel: the ranks of an engine that does not compare their calls (gloo, mpi, nccl) compare
// them here before it moves data, and learn here which ranks are late or gone. Not a public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/deadline.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0::side_channel {

using trace::CallRecord;

// One rank's end. Collectives are numbered from 1, in the order in which all ranks must make them.
// No function blocks.
// Thread-safety: one thread at a time, except fail().
class SideChannel {
 public:
  virtual ~SideChannel() = default;

  // Shows the `number`-th collective to the others. Returns false if there is no room yet: call it
  // again once an earlier collective is agreed.
  virtual bool publish(uint64_t number, const CallRecord& record) = 0;

  // True once every rank has shown the same `number`-th collective. Throws Mismatch.
  virtual bool agreed(uint64_t number) = 0;

  // Says that this rank has finished the `number`-th collective.
  virtual void finished(uint64_t number) = 0;

  // Throws the failure that a rank reported with fail().
  virtual void check_failed() = 0;

  // Says that this rank is waiting now. Called a few times a second during a wait.
  virtual void waiting() = 0;

  // The other ranks that have not shown their `number`-th collective.
  virtual std::vector<int> missing(uint64_t number) const = 0;

  // The other ranks that may not have finished the `number`-th collective and have not reported for
  // `silence` that they wait: they are stopped, or busy elsewhere.
  virtual std::vector<int> silent(uint64_t number, Deadline::Duration silence) const = 0;

  // A rank that is gone and without which the `number`-th collective cannot complete; -1: none.
  // `agreed`: whether all ranks have shown it.
  virtual int lost_before(uint64_t number, bool agreed) const = 0;

  // "rank 2 (pid 71), whose last collective was #6 barrier".
  virtual std::string whereabouts(int rank) const = 0;

  virtual bool lost(int rank) const = 0;  // its process or its end of the channel is gone

  // Tells the other ranks; the group keeps its first report. From any thread.
  virtual void fail(Failure kind, int lost_rank, const std::string& text) noexcept = 0;
};

// lockstep::mismatch_text() for records[r] of rank r.
std::string mismatch_text(const std::vector<CallRecord>& records);

}  // namespace lockstep::inline v0::side_channel
