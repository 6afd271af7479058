// SideChannel: how the ranks of an engine that does not compare their calls (gloo, mpi, nccl) do it
// before it moves data, and how they hear who is late or gone. Not a public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/core/deadline.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::side_channel {

using trace::CallRecord;

// One rank's end. Collectives are numbered from 1, in the order in which all ranks must make them.
// Nothing here blocks. One thread at a time, but for fail().
class SideChannel {
 public:
  virtual ~SideChannel() = default;

  // Shows the `number`-th collective to the others. False if there is no room yet: call again once
  // an earlier one is agreed.
  virtual bool publish(uint64_t number, const CallRecord& record) = 0;

  // True once every rank has shown its `number`-th collective, all the same. Throws Mismatch.
  virtual bool agreed(uint64_t number) = 0;

  // This rank is done with the `number`-th.
  virtual void finished(uint64_t number) = 0;

  // Throws what a rank reported with fail().
  virtual void check_failed() = 0;

  // This rank waits, now. To be said a few times a second while it does.
  virtual void waiting() = 0;

  // Which of the other ranks have not shown their `number`-th collective.
  virtual std::vector<int> missing(uint64_t number) const = 0;

  // Which of the other ranks that may not be done with the `number`-th have not said for `silence`
  // that they wait: they stand still, or do something else.
  virtual std::vector<int> silent(uint64_t number, Deadline::Duration silence) const = 0;

  // A rank that is gone and without which the `number`-th cannot be completed; -1: none. `agreed`:
  // whether all have shown it.
  virtual int lost_before(uint64_t number, bool agreed) const = 0;

  // "rank 2 (pid 71), whose last collective was #6 barrier".
  virtual std::string whereabouts(int rank) const = 0;

  virtual bool lost(int rank) const = 0;  // its process, or its end of the channel, is gone

  // Tells the others; the first report of the group stays. From any thread.
  virtual void fail(Failure kind, int lost_rank, const std::string& text) noexcept = 0;
};

// lockstep::mismatch_text() of records[r], which is rank r's.
std::string mismatch_text(const std::vector<CallRecord>& records);

}  // namespace lockstep::side_channel
