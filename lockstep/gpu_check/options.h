// The program's options, from its user or from the process of it that started this one.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::gpu_check {

struct Options {
  int ranks = 2;         // of the engines; peer has twice as many as well
  double seconds = 300;  // for everything
  bool small = false;    // tiny models and tensors: what is looked at, not how fast it is
  std::string json;      // a file for the rows
  std::string python = "python3";
  std::string nccl;               // a file of another NCCL, for two ranks on one device
  std::string sanitizer;          // compute-sanitizer; "": the one on PATH
  std::vector<std::string> only;  // parts; empty: all
  // The options of processes that the program starts itself.
  std::string part;     // this one, and no others
  std::string job;      // as a rank of this one
  std::string engine;   // of its communicator
  std::string contest;  // as what takes its turns there

  // For such a process, to which `more` is added.
  std::vector<std::string> arguments(const std::vector<std::string>& more) const;
};

// Throws InvalidArgument. `help`: set where help was asked for, to what is to be printed.
Options parse_options(int argc, const char* const* argv, std::string* help);

// Where everything runs: the devices are shared out by local rank.
inline constexpr const char* kDevice = "cuda";

// Whether the devices are played by the host (testing/fake_cuda): nothing is as fast as a device
// there, and no driver is to be asked.
bool devices_are_played();

// How many ranks can have a device of their own.
int visible_device_count();

}  // namespace lockstep::inline v0::gpu_check
