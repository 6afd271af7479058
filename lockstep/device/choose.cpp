#include "lockstep/device/choose.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>
#include <string_view>

#include "lockstep/core/check.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::device {
namespace {

constexpr std::string_view kNumbered = "cuda:";

c10::Device cuda(int number) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number)};
}

std::string devices_text(int number) {
  return number == 1 ? "one CUDA device, cuda:0"
                     : std::to_string(number) +
                           " CUDA devices, cuda:0 to cuda:" + std::to_string(number - 1);
}

}  // namespace

VisibleDevices visible_devices() {
  const auto* cuda_guard =
      c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  if (cuda_guard == nullptr) return {};
  return {.has_cuda = true, .cuda = cuda_guard->deviceCount()};
}

c10::Device choose_device(const std::string& request, int local_rank, const VisibleDevices& visible,
                          const std::string& source) {
  LOCKSTEP_CHECK(local_rank >= 0, "a rank of a host has a number");
  const bool sees_cuda = visible.has_cuda && visible.cuda > 0;
  if (request == "cpu" || (request == "auto" && !sees_cuda)) return {c10::DeviceType::CPU};
  std::optional<int64_t> number;
  if (request.starts_with(kNumbered))
    number = parse_int(std::string_view(request).substr(kNumbered.size()), 0);
  const std::string asked = source + " '" + request + "'";
  if (request != "cuda" && request != "auto" && !number)
    throw InvalidArgument(asked + " is none; there are cpu, cuda, cuda:0, cuda:1, ... and auto");
  if (!visible.has_cuda) {
    throw InvalidArgument(asked +
                          ": this program's libtorch is a CPU build; link it with a CUDA build "
                          "(scripts/quickstart --cuda), or ask for cpu or auto");
  }
  if (!sees_cuda) {
    throw InvalidArgument(asked +
                          ": this process sees no CUDA device; nvidia-smi shows those of the host, "
                          "CUDA_VISIBLE_DEVICES hides some; or ask for cpu or auto");
  }
  if (!number) return cuda(local_rank % visible.cuda);
  if (*number >= visible.cuda) {
    throw InvalidArgument(asked + ": this process sees " + devices_text(visible.cuda) +
                          "; ask for one of these, or for cuda, which shares them out among the "
                          "ranks of a host");
  }
  return cuda(static_cast<int>(*number));
}

int device_place(int local_rank, int local_size, std::optional<int> spare, int devices) {
  return spare && local_size + *spare < devices ? local_size + *spare : local_rank;
}

c10::Device choose_device(const std::string& request, int local_rank, const std::string& source) {
  if (request == "cpu") return choose_device(request, local_rank, VisibleDevices{}, source);
  const VisibleDevices visible = visible_devices();
  const EnvLookup env = process_env();
  std::optional<int> spare;
  if (const auto number = env_int(env, "LOCKSTEP_SPARE_DEVICE")) spare = static_cast<int>(*number);
  const auto ranks = static_cast<int>(env_int(env, "LOCAL_WORLD_SIZE").value_or(1));
  return choose_device(request, device_place(local_rank, ranks, spare, visible.cuda), visible,
                       source);
}

}  // namespace lockstep::inline v0::device
