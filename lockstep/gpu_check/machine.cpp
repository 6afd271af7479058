// The part "machine".
#include <dlfcn.h>
#include <torch/version.h>

#include <array>
#include <cstdio>
#include <thread>

#include "lockstep/core/subprocess.h"
#include "lockstep/device/current.h"
#include "lockstep/gpu_check/ceilings.h"
#include "lockstep/gpu_check/commands.h"
#include "lockstep/gpu_check/parts.h"

namespace lockstep::inline v0::gpu_check {
namespace {

void card(const Rows& rows) {
  if (devices_are_played()) {
    rows.skipped("nvidia-smi", "the devices are played by the host");
    return;
  }
  const CommandOutput asked = run_command(
      {"nvidia-smi",
       "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,mig.mode.current",
       "--format=csv,noheader"},
      10);
  if (!asked.ok()) {
    rows.skipped("nvidia-smi", asked.wrong + " " + last_words(asked.text));
    return;
  }
  rows.ok("nvidia-smi", last_words(asked.text, 8), {{"cards", asked.text}});
}

// Whether the loader finds a library, and the version that one of its functions tells.
void library(const Rows& rows, const char* file, const char* function) {
  void* handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    rows.skipped(file, last_words(::dlerror()));
    return;
  }
  int version = 0;
  // ncclGetVersion, cudaRuntimeGetVersion, cudaDriverGetVersion: int (*)(int*), 0 for success.
  const auto ask =
      reinterpret_cast<int (*)(int*)>(function != nullptr ? ::dlsym(handle, function) : nullptr);
  if (ask != nullptr && ask(&version) == 0)
    rows.ok(file, "version " + std::to_string(version), {{"version", version}});
  else
    rows.ok(file, "is there");
}

void ceilings(const Options& options, const Rows& rows) {
  if (devices_are_played()) {
    rows.skipped("ceilings", "the devices are played by the host, whose speed says nothing");
    return;
  }
  const c10::Device device = device::current(c10::kCUDA);
  const int64_t bytes = int64_t{1} << (options.small ? 24 : 30);
  const double copied = copy_ceiling(device, bytes);
  rows.ok("copy on the device", three_digits(copied / 1e12) + " TB/s read and written",
          {{"TB_per_s", copied / 1e12}});
  for (const bool to_device : {true, false}) {
    const double speed = pinned_copy(device, bytes / 4, to_device);
    rows.ok(to_device ? "pinned memory to device" : "device to pinned memory",
            three_digits(speed / 1e9) + " GB/s", {{"GB_per_s", speed / 1e9}});
  }
  for (const auto& [dtype, name] :
       {std::pair{c10::kBFloat16, "bfloat16"}, std::pair{c10::kFloat, "float32"}}) {
    const double speed = matmul_ceiling(device, dtype, options.small ? 1024 : 8192);
    rows.ok(std::string("product of matrices, ") + name, three_digits(speed / 1e12) + " TFLOP/s",
            {{"TFLOP_per_s", speed / 1e12}});
  }
}

}  // namespace

void look_at_machine(const Options& options, const Rows& rows) {
  rows.guard("nvidia-smi", [&] { card(rows); });
  rows.ok("libtorch", std::string(TORCH_VERSION) + ", " + std::to_string(visible_device_count()) +
                          " CUDA devices, " + std::to_string(std::thread::hardware_concurrency()) +
                          " processors");
  const CommandOutput torch =
      run_command({options.python, "-c",
                   "import torch; print(torch.__version__, 'CUDA', torch.version.cuda, 'cuDNN', "
                   "torch.backends.cudnn.version())"},
                  40);
  if (torch.ok())
    rows.ok("Python's torch", last_words(torch.text, 1));
  else
    rows.skipped("Python's torch", torch.wrong + " " + last_words(torch.text, 1));
  library(rows, "libcuda.so.1", "cuDriverGetVersion");
  library(rows, "libcudart.so.13", "cudaRuntimeGetVersion");
  library(rows, "libnccl.so.2", "ncclGetVersion");
  for (const char* program : {"compute-sanitizer", "nvidia-cuda-mps-control", "nvcc"}) {
    try {
      rows.ok(program, find_program(program));
    } catch (const std::exception&) {
      rows.skipped(program, "not on PATH");
    }
  }
  rows.guard("ceilings", [&] { ceilings(options, rows); });
}

}  // namespace lockstep::inline v0::gpu_check
