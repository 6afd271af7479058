// The engine of DataParallel, which knows tensors in flat lists and nothing of forward()'s types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct DataParallelOptions {
  // One replica each; the model is on the first. Empty: all CUDA devices where the model is on one,
  // else `replicas` times the CPU.
  std::vector<at::Device> devices = {};
  int replicas = 2;
  // Where inputs come from, outputs go to, and gradients are added up; the first device if unset.
  std::optional<at::Device> output_device = {};
  int64_t dim = 0;  // along which inputs are cut and outputs joined
};

// What passed between the output device and the replicas on other devices so far, in bytes. On one
// device, where replicas share the parameters and nothing has to be copied, it is counted as if
// each replica but the first had a device of its own.
struct DataParallelTraffic {
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t replicated = 0;           // parameters and buffers, out
  int64_t scattered = 0;            // inputs, out
  int64_t gathered = 0;             // outputs, back
  int64_t scattered_gradients = 0;  // of the outputs, out
  int64_t reduced = 0;              // gradients of parameters and inputs, back
  int64_t total() const {
    return replicated + scattered + gathered + scattered_gradients + reduced;
  }
  // The most that a forward with its backward kept at once, besides activations: parameters,
  // buffers, gradients, inputs, outputs and their gradients.
  int64_t output_device_bytes = 0;
  int64_t other_device_bytes = 0;  // the fullest of the others
};

// What a replica threw, nested in it (std::rethrow_if_nested), and which.
class ReplicaError : public Error {
 public:
  ReplicaError(const std::string& what, int replica) : Error(what), replica_(replica) {}
  int replica() const noexcept { return replica_; }

 private:
  int replica_;
};

namespace data_parallel {

using Tensors = std::vector<at::Tensor>;
using ModulePtr = std::shared_ptr<torch::nn::Module>;

// The devices that the options mean for this module. Throws InvalidArgument.
std::vector<at::Device> devices_for(const torch::nn::Module& module,
                                    const DataParallelOptions& options);

class Replicas {
 public:
  // `copies` are as many as devices, of the same parameters and buffers as the module by name and
  // shape; their values do not matter. They must not be used otherwise.
  Replicas(ModulePtr module, std::vector<ModulePtr> copies, std::vector<at::Device> devices,
           const DataParallelOptions& options);
  ~Replicas();

  // forward(r, part) runs copy r on its part of the inputs, on thread r, and returns its outputs.
  using Forward = std::function<Tensors(size_t replica, Tensors part)>;
  // Cuts the inputs, runs as many replicas as there are parts, and joins their outputs; with
  // gradients enabled the result leads back to the inputs and the module's parameters.
  Tensors run(const Tensors& inputs, const Forward& forward);

  const DataParallelTraffic& traffic() const;

 private:
  class State;
  std::shared_ptr<State> state_;  // graphs hold it too
};

}  // namespace data_parallel
}  // namespace lockstep
