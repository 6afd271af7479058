// The part "stops".
#include <dlfcn.h>

#include "lockstep/device/current.h"
#include "lockstep/gpu_check/contest.h"
#include "lockstep/gpu_check/parts.h"

namespace lockstep::inline v0::gpu_check {
namespace {

// libtorch's switch for what its operations do where the host waits for the device, as
// torch.cuda.set_sync_debug_mode() sets it: c10::cuda::warning_state() has it first, an enum. Its
// header wants a CUDA toolkit's, so the variable, which a process has once, is looked up.
class SyncDebugMode {
 public:
  SyncDebugMode()
      : mode_(static_cast<int*>(
            ::dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"))) {}
  ~SyncDebugMode() { set(kDisabled); }
  SyncDebugMode(const SyncDebugMode&) = delete;
  SyncDebugMode& operator=(const SyncDebugMode&) = delete;

  bool known() const { return mode_ != nullptr && *mode_ == kDisabled; }
  void throw_for_stops() { set(kError); }
  void off() { set(kDisabled); }

 private:
  static constexpr int kDisabled = 0, kError = 2;
  void set(int mode) {
    if (mode_ != nullptr) *mode_ = mode;
  }
  int* mode_;
};

}  // namespace

void look_at_stops(const Options& options, const Rows& rows) {
  if (devices_are_played()) {
    rows.skipped("steps without a stop", "the devices are played by the host, where tests count");
    return;
  }
  SyncDebugMode mode;
  if (!mode.known()) {
    rows.skipped("steps without a stop", "this libtorch has no such switch");
    return;
  }
  const c10::Device device = device::current(c10::kCUDA);
  constexpr int kSteps = 5;
  for (const StepCase& one : step_cases(options.small)) {
    rows.guard(one.name, [&] {
      const auto contest = make_contest(one, device, nullptr);
      (void)ms_per_step(*contest, device, 2);  // Adam's first step may ask
      mode.throw_for_stops();
      try {
        for (int i = 0; i < kSteps; ++i) contest->step();
      } catch (...) {
        mode.off();
        throw;
      }
      mode.off();
      device::synchronize(device);
      rows.ok(one.name, std::to_string(kSteps) + " steps, and the host waited for nothing");
    });
  }
}

}  // namespace lockstep::inline v0::gpu_check
