#include "lockstep/device/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/device/current.h"
#include "lockstep/device/event.h"
#include "lockstep/device/graph.h"

namespace lockstep::inline v0::device {
namespace {

// Those of which CUDA says that the process must end to use the device again, and those of a device
// that is gone.
constexpr std::array kFailures = {
    46,   // DevicesUnavailable
    100,  // NoDevice
    214,  // ECCUncorrectable
    220,  // NvlinkUncorrectable
    226,  // Contained
    700,  // IllegalAddress
    702,  // LaunchTimeout
    709,  // ContextIsDestroyed
    710,  // Assert
    714,  // HardwareStackError
    715,  // IllegalInstruction
    716,  // MisalignedAddress
    717,  // InvalidAddressSpace
    718,  // InvalidPc
    719,  // LaunchFailure
    721,  // TensorMemoryLeak
    810,  // MpsClientTerminated
    911,  // ExternalDevice
    999,  // Unknown
};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// Whether a part of CUDA reports an error without the device's own code, as its libraries do.
bool is_of_a_library(const std::exception& error) {
  if (dynamic_cast<const c10::Error*>(&error) == nullptr || captures_here()) return false;
  const std::string_view text = error.what();
  return text.find("CUDA error") != text.npos || text.find("cuDNN error") != text.npos;
}

}  // namespace

std::optional<DeviceFailure> device_failure(const std::exception& error) {
  const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (of_device == nullptr) {
    if (!is_of_a_library(error)) return std::nullopt;
    try {
      throw_if_failed(current(c10::DeviceType::CUDA));
    } catch (const c10::AcceleratorError& known) {
      return device_failure(known);
    } catch (const std::exception&) {  // there is no CUDA here
    }
    return std::nullopt;
  }
  const int code = of_device->get_error_code();
  if (std::find(kFailures.begin(), kFailures.end(), code) == kFailures.end()) return std::nullopt;
  return DeviceFailure{.device = current(c10::DeviceType::CUDA),
                       .code = code,
                       .what = first_line(of_device->what_without_backtrace())};
}

void throw_if_failed(c10::Device device) {
  if (device.is_cpu()) return;
  Event now(device);
  now.record();
  (void)now.reached();
}

}  // namespace lockstep::inline v0::device
