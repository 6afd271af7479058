// --device, of the commands that compute.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "lockstep/comm/communicator.h"

namespace CLI {
class App;
}

namespace lockstep::engine {

void add_device_option(CLI::App& app, std::string& device);

// `device` is as the option has it; "": not given, which means LOCKSTEP_DEVICE, or the CPU. Both
// bring the model there, and throw InvalidArgument where there is no such device.
//
// This rank of the job.
// Collective: all ranks call it.
Communicator join_with(torch::nn::Module& model, const std::string& device);
// A process that works alone.
void bring_to_device(torch::nn::Module& model, const std::string& device);

}  // namespace lockstep::engine
