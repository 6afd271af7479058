// Parameters that two chunks of a pipeline share.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::inline v0::internal {

class Ties {
 public:
  // Throws: InvalidArgument for a tie that does not fit this stage.
  Ties(const PipelineSchedule& schedule, int stage, std::vector<PipelineTie> ties);

  const std::vector<PipelineTie>& list() const { return ties_; }
  // Copies the first chunks' values to the last chunks' tensors. Every rank calls it.
  void spread(Communicator& comm);
  // Called before a step's first backward: gradients of tied parameters are kept separately.
  void begin();
  // Called after its last: both tensors get the step's sum, added to the former gradient. Every
  // rank calls it.
  void end(Communicator& comm);

 private:
  struct Own {
    at::Tensor parameter;
    bool first = false;  // this stage has the first chunk
    int peer = 0;        // the other stage
    int tag = 0;
    at::Tensor before;  // the former gradient
  };
  std::vector<PipelineTie> ties_;
  std::vector<Own> own_;
};

}  // namespace lockstep::inline v0::internal
