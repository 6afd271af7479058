// FusedBuffers: transports gradients of many parameters between ranks, in few buffers at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::horovod {

// The operation that combines the ranks' gradients.
struct Reduction {
  ReduceOp op = ReduceOp::kAvg;
  double before = 1;  // factors
  double after = 1;
};

// Memory for one gradient of every parameter, in the type that travels, shared by the ranks of a
// host where the backend supports that. A start() copies the gradients one after another into that
// memory; finish() copies them back and frees it.
class FusedBuffers {
 public:
  // `wire`: the type to which longer floating-point gradients are rounded; kUndefined: none.
  // Collective: all ranks call it.
  FusedBuffers(Communicator comm, std::vector<at::Tensor> parameters, at::ScalarType wire,
               int64_t threshold, Reduction reduction);

  // Starts to reduce the gradients of these parameters, in buffers that are full with `threshold`
  // bytes; an undefined gradient counts as zero. Does not block.
  // Collective: all ranks call it with the same parameters.
  void start(std::span<const size_t> parameters, const std::string& note);
  // Waits for all started reductions and writes them back, into the gradient or a new one.
  void finish();
  int64_t bytes() const;  // of that memory

 private:
  struct Pending {
    at::Tensor buffer;
    std::vector<std::pair<size_t, at::Tensor>> parts;  // of the buffer, in the parameters' shapes
    Work work;
  };
  struct Pool {
    at::Tensor memory;
    int64_t taken = 0;  // elements
  };

  at::ScalarType travels_as(size_t parameter) const;

  Communicator comm_;
  std::vector<at::Tensor> parameters_;
  at::ScalarType wire_;
  int64_t threshold_;
  Reduction reduction_;
  std::map<at::ScalarType, Pool> pools_;
  std::vector<Pending> pending_;
};

}  // namespace lockstep::inline v0::horovod
