// JoinProtocol: asks which ranks still have data, before each of the calls that a rank without data
// shadows (see join.h). Not used directly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::internal {

// The next common call of the ranks with data.
enum class Step : int64_t {
  kNothing,     // this rank has no data left
  kForward,     // detail: the number of forwards, the batch, samples, whether buffers are exchanged
  kStatistics,  // SyncBatchNorm's; detail: numbers, group of layers
  kLayout,      // the buckets are made
  kBucket,      // one bucket's reduction starts; detail: its index
  kFinish,      // the reductions end
};

struct Announcement {
  Step step = Step::kNothing;
  int64_t detail[4] = {};
};

// The announcements of all ranks.
struct JoinState {
  int contributing = 0;  // ranks with data
  int first = -1;        // the lowest of them; -1: none
  Announcement step;     // its announcement
  int64_t samples = 0;   // of all ranks' forwards
};
JoinState read_join_state(std::span<const Announcement> said);  // by rank

class JoinProtocol {
 public:
  explicit JoinProtocol(Communicator comm) : comm_(std::move(comm)) {}

  // The blocking form returns the announcements.
  // Collective: all ranks call it.
  JoinState call(const Announcement& own, Communicator::Site site);
  void start(const Announcement& own);  // for calls that need no answer
  void settle();                        // waits for the started calls

 private:
  struct Pending {
    at::Tensor own, all;
    Work work;
  };
  Communicator comm_;
  std::vector<Pending> pending_;
};

}  // namespace lockstep::inline v0::internal
