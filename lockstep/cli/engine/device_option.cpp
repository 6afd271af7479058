#include "lockstep/cli/engine/device_option.h"

#include <CLI/CLI.hpp>

#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/device/choose.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr const char* kOption = "--device";

}  // namespace

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option(kOption, device, "what to compute on [LOCKSTEP_DEVICE, else cpu]")
      ->type_name("cpu|cuda|auto");
}

Communicator join_with(torch::nn::Module& model, const std::string& device) {
  if (!device.empty()) (void)device::choose_device(device, 0, kOption);
  Communicator comm = init({.device = device});
  if (!comm.device().is_cpu()) model.to(comm.device());
  return comm;
}

void bring_to_device(torch::nn::Module& model, const std::string& device) {
  const std::string variable = process_env()("LOCKSTEP_DEVICE").value_or("");
  const std::string& asked = device.empty() ? variable : device;
  if (asked.empty()) return;
  const at::Device chosen =
      device::choose_device(asked, 0, device.empty() ? "LOCKSTEP_DEVICE" : kOption);
  if (!chosen.is_cpu()) model.to(chosen);
}

}  // namespace lockstep::inline v0::engine
