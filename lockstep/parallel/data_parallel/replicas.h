// The engine of DataParallel. It works on flat lists of tensors, independently of forward()'s
// types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

// The options of DataParallel.
struct DataParallelOptions {
  // One replica on each; the model is on the first. Empty: all CUDA devices where the model is on
  // one, otherwise `replicas` times the CPU.
  std::vector<at::Device> devices = {};
  int replicas = 2;  // where `devices` is empty and the model is on the CPU
  // The device of inputs and outputs, on which gradients are added; the first device if unset.
  std::optional<at::Device> output_device = {};
  int64_t dim = 0;  // along which inputs are cut and outputs joined
};

// Bytes that have passed between the output device and the replicas on other devices so far. On one
// device, where replicas share the parameters and nothing has to be copied, they are counted as if
// each replica except the first had a device of its own.
struct DataParallelTraffic {
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t replicated = 0;           // parameters and buffers, out
  int64_t scattered = 0;            // inputs, out
  int64_t gathered = 0;             // outputs, back
  int64_t scattered_gradients = 0;  // gradients of the outputs, out
  int64_t reduced = 0;              // gradients of parameters and inputs, back
  // In both directions.
  int64_t total() const {
    return replicated + scattered + gathered + scattered_gradients + reduced;
  }
  // The maximum that a forward with its backward kept at once, besides activations: parameters,
  // buffers, gradients, inputs, outputs and their gradients.
  int64_t output_device_bytes = 0;
  int64_t other_device_bytes = 0;  // the maximum of the others
};

// An exception of a replica, nested in it (std::rethrow_if_nested), with the replica's index.
class LOCKSTEP_API ReplicaError : public Error {
 public:
  ReplicaError(const std::string& what, int replica) : Error(what), replica_(replica) {}
  int replica() const noexcept { return replica_; }  // from 0

 private:
  int replica_;
};

namespace data_parallel {

// The tensors of a forward's arguments or results.
using Tensors = std::vector<at::Tensor>;
// A module that is shared.
using ModulePtr = std::shared_ptr<torch::nn::Module>;

// The devices that the options select for this module.
// Throws: InvalidArgument.
LOCKSTEP_API std::vector<at::Device> devices_for(const torch::nn::Module& module,
                                                 const DataParallelOptions& options);

// Runs the replicas of a model, each on a thread of its own.
class LOCKSTEP_API Replicas {
 public:
  // There are as many `copies` as devices, with the module's parameters and buffers by name and
  // shape; their values do not matter. They must not be used otherwise.
  Replicas(ModulePtr module, std::vector<ModulePtr> copies, std::vector<at::Device> devices,
           const DataParallelOptions& options);
  ~Replicas();

  // forward(r, part) runs copy r on its part of the inputs, on thread r, and returns its outputs.
  using Forward = std::function<Tensors(size_t replica, Tensors part)>;
  // Cuts the inputs, runs one replica per part, and joins their outputs; with gradients enabled the
  // result leads back to the inputs and the module's parameters.
  Tensors run(const Tensors& inputs, const Forward& forward);

  const DataParallelTraffic& traffic() const;  // so far

 private:
  class State;
  std::shared_ptr<State> state_;  // graphs own it too
};

}  // namespace data_parallel
}  // namespace lockstep::inline v0
