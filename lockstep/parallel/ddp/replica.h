// The part of DistributedDataParallel that does not depend on the module's type. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/sync_batch_norm_watch.h"

namespace lockstep::inline v0::internal {

class JoinProtocol;
struct JoinState;

class LOCKSTEP_API Replica {
 public:
  // Compares the ranks' tensors, then copies rank 0's to all.
  // Collective: all ranks call it.
  // Throws: InvalidArgument, before anything is sent, where no parameter requires a gradient.
  Replica(NamedTensors parameters, ModelKind kind, NamedTensors buffers,
          SyncBatchNormWatch sync_batch_norms, Communicator comm, DdpOptions options);

  // Returns the weight of this rank's loss; equal weights are 1.
  // Throws: InvalidArgument where the model's parameters are not those that were wrapped.
  template <AnyModel M>
  double before_forward(const M& model, int64_t samples) {
    sync_batch_norms_.check();
    if (at::GradMode::is_enabled()) wrapped_.check(model);
    return before_forward(is_training(model), samples);
  }
  Reducer& reducer() { return reducer_; }
  Communicator& comm() { return comm_; }

  // See join.h.
  void begin_join();
  void finish_join(const std::function<void()>& after_backward, Communicator::Site site);
  void leave_join();

 private:
  double before_forward(bool training, int64_t samples);
  void exchange_buffers(int source, int contributing, bool own_counts);
  JoinState call_forward(int64_t samples, bool communicates);
  void make_equal();
  void note(const JoinState& join_state);

  flat::WrappedParameters wrapped_;
  Communicator comm_;
  DdpOptions options_;
  NamedTensors parameters_;  // including those without gradients
  NamedTensors buffers_;
  SyncBatchNormWatch sync_batch_norms_;
  Reducer reducer_;
  std::shared_ptr<JoinProtocol> join_protocol_;
  bool uneven_ = false;  // since begin_join(), a rank had no data at another's forward
  int last_source_ = 0;  // a rank that had data at the last forward
};

// The same values; their gradients are multiplied by `weight` on their way back.
LOCKSTEP_API at::Tensor weigh_gradient(const at::Tensor& output, double weight);
[[noreturn]] LOCKSTEP_API void throw_cannot_weigh();

}  // namespace lockstep::inline v0::internal
