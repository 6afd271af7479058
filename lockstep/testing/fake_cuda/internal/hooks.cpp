// What libtorch asks of CUDA as a whole, and the devices' generators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing::fake {
namespace {

c10::Device device_of(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

// A device's generator draws what a generator of the CPU would.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(int device, at::Generator host)
      : GeneratorImpl(device_of(device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        host_(std::move(host)) {}

  const at::Generator& host() const { return host_; }

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  void set_offset(uint64_t) override {
    TORCH_CHECK(false, "FakeCuda's generators are the CPU's and have no offset");
  }
  uint64_t get_offset() const override {
    TORCH_CHECK(false, "FakeCuda's generators are the CPU's and have no offset");
  }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device().index(), host_.clone());
  }
  at::Generator host_;
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const override { return there(); }
  bool isAvailable() const override { return there(); }
  bool hasCUDA() const override { return there(); }
  bool hasPrimaryContext(at::DeviceIndex) const override { return there(); }
  at::DeviceIndex deviceCount() const override {
    return there() ? static_cast<at::DeviceIndex>(machine().options.devices) : at::DeviceIndex{0};
  }
  int getNumGPUs() const override { return deviceCount(); }

  void setCurrentDevice(at::DeviceIndex device) const override {
    guard().setDevice(device_of(device));
  }
  at::DeviceIndex getCurrentDevice() const override { return current_device_index(); }
  at::DeviceIndex current_device() const override { return current_device_index(); }
  at::DeviceIndex exchangeDevice(at::DeviceIndex device) const override {
    return guard().exchangeDevice(device_of(device)).index();
  }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(at::DeviceIndex device) const override {
    guard().synchronizeDevice(device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(there() && machine().memory.owns(data), "FakeCuda: no device's memory is there");
    return device_of(machine().memory.device_of(data));
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  const at::Generator& getDefaultGenerator(at::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device_index() : device);
  }
  at::Generator getNewGenerator(at::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device_index() : device);
  }
  std::string showConfig() const override { return "FakeCuda: devices that the host plays\n"; }

 private:
  static bool there() { return installed_machine() != nullptr; }
  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA);
  }
  static at::DeviceIndex current_device_index() {
    return static_cast<at::DeviceIndex>(fake::current_device());
  }
};

// libtorch asks for them once, maybe before install(); until then they say that there is no CUDA.
bool register_hooks() {
  static const bool ours = [] {
    if (at::CUDAHooksRegistry()->Has("CUDAHooks")) return false;  // a CUDA build
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks", [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> {
          return std::make_unique<Hooks>(args);
        });
    return true;
  }();
  return ours;
}
[[maybe_unused]] const bool registered = register_hooks();

}  // namespace

bool hooks_are_ours() {
  return register_hooks() && dynamic_cast<const Hooks*>(&at::detail::getCUDAHooks()) != nullptr;
}

const at::Generator& default_generator(int device) {
  static const auto* const generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < machine().options.devices; ++i) made->push_back(new_generator(i));
    return made;
  }();
  return generators->at(static_cast<size_t>(device));
}

at::Generator new_generator(int device) {
  return at::make_generator<DeviceGenerator>(device, at::make_generator<at::CPUGeneratorImpl>());
}

at::Generator host_generator(const at::Generator& generator, int device) {
  const at::Generator& own = generator.defined() ? generator : default_generator(device);
  if (own.device().is_cpu()) return own;
  return dynamic_cast<DeviceGenerator&>(*own.unsafeGetGeneratorImpl()).host();
}

}  // namespace lockstep::inline v0::testing::fake
