#include "lockstep/gpu_check/options.h"

#include <CLI/CLI.hpp>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/choose.h"

namespace lockstep::inline v0::gpu_check {

std::vector<std::string> Options::arguments(const std::vector<std::string>& more) const {
  std::vector<std::string> result{
      "--ranks", std::to_string(ranks), "--seconds", std::to_string(seconds), "--python", python};
  if (small) result.emplace_back("--small");
  if (!nccl.empty()) result.insert(result.end(), {"--nccl", nccl});
  if (!sanitizer.empty()) result.insert(result.end(), {"--sanitizer", sanitizer});
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

Options parse_options(int argc, const char* const* argv, std::string* help) {
  Options options;
  CLI::App app("Looks at what Lockstep does on the GPUs of this machine, part by part.",
               "lockstep-gpu-check");
  app.add_option("--ranks", options.ranks, "ranks of the engines; with as many GPUs also of nccl")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "for everything")
      ->check(CLI::Range(1.0, 36000.0))
      ->capture_default_str();
  app.add_option("--json", options.json, "a file for the rows");
  app.add_option("--only", options.only, "these parts alone: a,b")->delimiter(',');
  app.add_flag("--small", options.small, "tiny models and tensors");
  app.add_option("--python", options.python, "whose torch is compared with")->capture_default_str();
  app.add_option("--nccl", options.nccl,
                 "another libnccl.so.2 (2.30.3 or newer), for two ranks on one GPU");
  app.add_option("--sanitizer", options.sanitizer, "compute-sanitizer; else the one on PATH");
  for (auto [name, value] : {std::pair{"--part", &options.part},
                             {"--job", &options.job},
                             {"--engine", &options.engine},
                             {"--contest", &options.contest}})
    app.add_option(name, *value)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(error.what());
  }
  return options;
}

bool devices_are_played() {
  return process_env()("LOCKSTEP_FAKE_CUDA").has_value();
}

int visible_device_count() {
  return device::visible_devices().cuda;
}

}  // namespace lockstep::inline v0::gpu_check
