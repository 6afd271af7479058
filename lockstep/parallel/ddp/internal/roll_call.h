// RollCall: which ranks still have data, asked before each of the calls that a rank without data
// makes along with the others (see join.h). Not used directly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::internal {

// What the ranks with data are about to do together.
enum class Step : int64_t {
  kNothing,     // this rank has no data left
  kForward,     // detail: the count of forwards, the batch, samples, whether buffers are exchanged
  kStatistics,  // SyncBatchNorm's. detail: numbers, group of layers
  kLayout,      // the buckets are made
  kBucket,      // one bucket's reduction starts; detail: which
  kFinish,      // the reductions end
};

struct Announcement {
  Step step = Step::kNothing;
  int64_t detail[4] = {};
};

// What everybody said.
struct Roll {
  int contributing = 0;  // ranks that have data
  int first = -1;        // the lowest of them; -1: none
  Announcement step;     // its announcement
  int64_t samples = 0;   // of all ranks' forwards
};
Roll read_roll(std::span<const Announcement> said);  // by rank

class RollCall {
 public:
  explicit RollCall(Communicator comm) : comm_(std::move(comm)) {}

  // Collective. The blocking form tells what the others said.
  Roll call(const Announcement& own, Communicator::Site site);
  void start(const Announcement& own);  // for those that need no answer
  void settle();                        // waits for what was started

 private:
  struct Pending {
    at::Tensor own, all;
    Work work;
  };
  Communicator comm_;
  std::vector<Pending> pending_;
};

}  // namespace lockstep::internal
