// Parameters that two chunks of a pipeline share.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::internal {

class Ties {
 public:
  // Throws InvalidArgument for one that does not fit this stage.
  Ties(const PipelineSchedule& schedule, int stage, std::vector<PipelineTie> ties);

  const std::vector<PipelineTie>& list() const { return ties_; }
  // The last chunks' tensors get the first ones' values. Every rank calls it.
  void spread(Communicator& comm);
  // Before a step's first backward: its gradients will be by themselves.
  void begin();
  // After its last: both tensors have the step's sum, added to what was there before. Every rank calls it.
  void end(Communicator& comm);

 private:
  struct Own {
    at::Tensor parameter;
    bool first = false;  // this stage has the first chunk
    int peer = 0;        // the other stage
    int tag = 0;
    at::Tensor before;  // gradient
  };
  std::vector<PipelineTie> ties_;
  std::vector<Own> own_;
};

}  // namespace lockstep::internal
