// choose_device(): which device a rank trains on.
//
// The ranks of a host share the CUDA devices that they see: rank r of the host takes device
// r modulo their number. So it is right where each rank sees all of them, where each sees one of
// its own (Slurm's --gpus-per-task), and where there are more ranks than devices.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace lockstep::device {

// What this process has to choose from.
struct VisibleDevices {
  bool has_cuda = false;  // the program's libtorch has CUDA
  int cuda = 0;           // CUDA devices that the process sees (CUDA_VISIBLE_DEVICES)
};
// Asks CUDA's driver. No device is used yet.
VisibleDevices visible_devices();

// `request`: "cpu"; "cuda", the CUDA device that falls to `local_rank` (>= 0); "cuda:1", that one
// whatever the rank; "auto", as "cuda" where a CUDA device is visible, else as "cpu". `source` is
// who asked, an option or a variable, and begins the messages. The result has a number unless it is
// the CPU. Throws InvalidArgument for another request, where libtorch has no CUDA, where no device
// is visible, and where the number is too large. A decision from its arguments alone.
c10::Device choose_device(const std::string& request, int local_rank, const VisibleDevices& visible,
                          const std::string& source = "device");
// Among visible_devices(), which are looked at only where the request makes a difference.
c10::Device choose_device(const std::string& request, int local_rank,
                          const std::string& source = "device");

}  // namespace lockstep::device
