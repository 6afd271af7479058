// What DistributedDataParallel does whatever the module's type. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/sync_batch_norm_watch.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

class RollCall;
struct Roll;

class Replica {
 public:
  // Collective: compares the ranks' tensors, then rank 0's go to all. Throws InvalidArgument, before
  // anything is sent, where no parameter requires a gradient.
  Replica(NamedTensors parameters, NamedTensors buffers, SyncBatchNormWatch sync_batch_norms,
          Communicator comm, DdpOptions options);

  // Returns what this rank's loss counts, where all alike is 1. Throws InvalidArgument where the module's
  // parameters are not those that were wrapped.
  double before_forward(const torch::nn::Module& module, int64_t samples);
  Reducer& reducer() { return reducer_; }
  Communicator& comm() { return comm_; }

  // See join.h.
  void begin_join();
  void finish_join(const std::function<void()>& after_backward, Communicator::Site site);
  void leave_join();

 private:
  void exchange_buffers(int source, int contributing, bool own_counts);
  Roll call_forward(int64_t samples, bool communicates);
  void make_equal();
  void note(const Roll& roll);

  flat::WrappedParameters wrapped_;
  Communicator comm_;
  DdpOptions options_;
  NamedTensors parameters_;  // those without gradients included
  NamedTensors buffers_;
  SyncBatchNormWatch sync_batch_norms_;
  Reducer reducer_;
  std::shared_ptr<RollCall> roll_call_;
  bool uneven_ = false;  // since begin_join(), a rank was without data at another's forward
  int last_source_ = 0;  // a rank that had data at the last forward
};

// The same values, whose gradients are multiplied by `weight` on their way back.
at::Tensor weigh_gradient(const at::Tensor& output, double weight);
[[noreturn]] void throw_cannot_weigh();

}  // namespace lockstep::internal
