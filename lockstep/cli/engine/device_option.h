// The option --device of the commands that compute.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "lockstep/comm/communicator.h"

namespace CLI {
class App;
}

namespace lockstep::inline v0::engine {

void add_device_option(CLI::App& app, std::string& device);

// `device` is the option's value; "" means that it was not given: LOCKSTEP_DEVICE, or the CPU. Both
// functions bring the model to the device.
// Throws: InvalidArgument where there is no such device.
//
// Joins the job as this process's rank.
// Collective: all ranks call it.
Communicator join_with(torch::nn::Module& model, const std::string& device);
// For a process that works alone.
void bring_to_device(torch::nn::Module& model, const std::string& device);

}  // namespace lockstep::inline v0::engine
