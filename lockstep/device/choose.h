// choose_device(): the device that a rank trains on.
//
// The ranks of a host share the CUDA devices that they see: rank r of the host takes device r
// modulo their number. This is right if each rank sees all of them, if each rank sees one of its
// own (Slurm's --gpus-per-task), and if there are more ranks than devices.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// The devices that this process can choose from.
struct VisibleDevices {
  bool has_cuda = false;  // the program's libtorch has CUDA
  int cuda = 0;           // CUDA devices that the process sees (CUDA_VISIBLE_DEVICES)
};
// Asks CUDA's driver, without using any device.
LOCKSTEP_API VisibleDevices visible_devices();

// The number that stands for `local_rank` when it chooses among `devices`, since a device of it has
// failed before: that of the `spare`-th of the devices that no rank of the host has, if there are
// so many; `local_rank` itself otherwise, and where `spare` is null. `local_size`: ranks of the
// host. Launchers give `spare` in LOCKSTEP_SPARE_DEVICE, each number to one rank. Pure.
LOCKSTEP_API int device_place(int local_rank, int local_size, std::optional<int> spare,
                              int devices);

// `request` is "cpu"; "cuda", the CUDA device that `local_rank` (>= 0) gets; "cuda:1", that device
// whatever the rank; or "auto", the same as "cuda" if a CUDA device is visible, and otherwise as
// "cpu". `source`, an option or a variable, is where the request comes from; messages begin with
// it. The result has a number unless it is the CPU. It depends only on the arguments.
// Throws: InvalidArgument for another request, if libtorch has no CUDA, if no device is visible,
// and if the number is too large.
LOCKSTEP_API c10::Device choose_device(const std::string& request, int local_rank,
                                       const VisibleDevices& visible,
                                       const std::string& source = "device");
// The same with visible_devices(), which is called only if the request depends on it; for "cuda"
// and "auto" the device of device_place(), by this process's environment.
LOCKSTEP_API c10::Device choose_device(const std::string& request, int local_rank,
                                       const std::string& source = "device");

}  // namespace lockstep::inline v0::device
