#include "lockstep/testing/fake_cuda/internal/fallback.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/host_views.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// Operators that wait for the device since their result's size depends on values.
bool sized_by_values(const std::string& name) {
  static const std::set<std::string> names{
      "aten::nonzero",    "aten::masked_select",      "aten::_unique",
      "aten::_unique2",   "aten::unique_consecutive", "aten::unique_dim_consecutive",
      "aten::unique_dim", "aten::bincount",           "aten::repeat_interleave"};
  return names.contains(name);
}

// They take indices of the host, and copy them.
bool indexes(const std::string& name) {
  static const std::set<std::string> names{"aten::index", "aten::index_put", "aten::index_put_",
                                           "aten::_index_put_impl_", "aten::_unsafe_index"};
  return names.contains(name);
}

// One call of an operator, its arguments on top of `stack`.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), text_(c10::toString(op.operator_name())) {
    find_device();
  }

  void run() {
    const auto& schema = op_.schema();
    const MadeBy maker(text_);
    const DeviceNow now(device_);
    if (indexes(schema.name())) move_indices();
    if (is_view()) {
      take_arguments(nullptr);
      call();
      give_results();
      return;
    }
    Launch launch(text_, current_slot(device_));
    captured_ = launch.capture() != nullptr;
    take_arguments(&launch);
    FakeCudaCounts counts;
    counts.operations = counts.fallbacks = 1;
    count(counts);
    launch.start();
    torch::jit::Stack arguments;  // for replays
    if (launch.capture())
      arguments.assign(stack_.end() - static_cast<std::ptrdiff_t>(count_arguments()), stack_.end());
    call();
    const std::vector<HostViews::Outgrown> outgrown = views_.resize_changed();
    give_results();
    if (launch.capture()) record(*launch.capture(), std::move(arguments), outgrown);
    if (schema.name() == "aten::equal")
      stop_host(HostStop::kItem, text_, launch.stream(), launch.moment().clock);
    else if (masked_ || waits_for_size())
      stop_host(HostStop::kResultSize, text_, launch.stream(), launch.moment().clock);
  }

 private:
  size_t count_arguments() const { return op_.schema().arguments().size(); }
  c10::IValue& argument(size_t i) { return stack_[stack_.size() - count_arguments() + i]; }

  template <typename F>
  static void each_tensor(const c10::IValue& value, const F& see) {
    if (value.isTensor()) {
      see(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) see(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        if (tensor) see(*tensor);
    }
  }

  void find_device() {
    std::optional<c10::Device> found;
    const auto see = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_cuda()) return;
      TORCH_CHECK(!found || *found == tensor.device(),
                  "Expected all tensors to be on the same "
                  "device, but found at least two devices, ",
                  *found, " and ", tensor.device(), "! (in ", text_, ")");
      found = tensor.device();
    };
    for (size_t i = 0; i < count_arguments(); ++i) each_tensor(argument(i), see);
    for (size_t i = 0; !found && i < count_arguments(); ++i)
      if (argument(i).isDevice() && argument(i).toDevice().is_cuda() &&
          argument(i).toDevice().has_index())
        found = argument(i).toDevice();
    device_ = found ? found->index() : current_device();
  }

  // Indices of the host come to the device first, by copies that block.
  void move_indices() {
    c10::IValue& value = argument(1);
    if (!value.isOptionalTensorList() && !value.isTensorList()) return;
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_));
    c10::List<std::optional<at::Tensor>> moved;
    each_index(value, [&](std::optional<at::Tensor> index) {
      if (index && index->defined()) {
        if (index->is_cpu()) index = index->to(device);
        masked_ = masked_ || index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
      }
      moved.push_back(std::move(index));
    });
    value = std::move(moved);
  }
  template <typename F>
  static void each_index(const c10::IValue& value, const F& see) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) see(std::optional(tensor));
    } else {
      for (const auto& tensor : value.toOptionalTensorVector()) see(tensor);
    }
  }

  // It gives another look at its argument and does no work.
  bool is_view() const {
    const auto& schema = op_.schema();
    if (schema.returns().empty()) return false;
    for (const auto& argument : schema.arguments())
      if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return false;
    const auto* alias = schema.returns()[0].alias_info();
    return alias != nullptr && !alias->isWrite();
  }

  bool waits_for_size() {
    if (!sized_by_values(op_.schema().name())) return false;
    // repeat_interleave with an output_size does not ask the device.
    const auto size = op_.schema().argumentIndexWithName("output_size");
    return !size || !sized_;
  }

  at::Tensor take(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cuda()) return views_.of(tensor);
    TORCH_CHECK(tensor.dim() == 0 || !tensor.is_cpu(),
                "Expected all tensors to be on the same device, but found at least two devices, "
                "cuda:",
                device_, " and cpu! (in ", text_, ")");
    return captured_ ? tensor.clone() : tensor;  // its value goes with the kernel's arguments
  }

  void take_arguments(Launch* launch) {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = argument(i);
      if (launch != nullptr) {
        const bool write =
            arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
        each_tensor(value, [&](const at::Tensor& tensor) {
          if (tensor.defined() && tensor.is_cuda())
            write ? launch->writes(tensor) : launch->reads(tensor);
        });
      }
      if (arguments[i].name() == "output_size" && !value.isNone()) sized_ = true;
      if (value.isTensor()) {
        value = take(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> taken;
        for (const at::Tensor& tensor : value.toTensorVector()) taken.push_back(take(tensor));
        value = std::move(taken);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> taken;
        for (const auto& tensor : value.toOptionalTensorVector())
          taken.push_back(tensor ? std::optional(take(*tensor)) : std::nullopt);
        value = std::move(taken);
      } else if (value.isDevice()) {
        value = c10::Device(c10::DeviceType::CPU);
      } else if (arguments[i].name() == "generator") {
        value = host_generator(value.isNone() ? at::Generator() : value.toGenerator(), device_);
      } else if (value.isNone() && arguments[i].name() == "device") {
        value = c10::Device(c10::DeviceType::CPU);
      }
    }
  }

  void call() {
    TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), text_,
                                " has no kernel for the CPU that FakeCuda could run");
    const PlainKernels plain;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  }

  // A replay calls it once more, on the same memory, and puts what is new where this call's results are.
  void record(Capture& capture, torch::jit::Stack arguments,
              const std::vector<HostViews::Outgrown>& outgrown) const {
    capture.add([op = op_, arguments = std::move(arguments), fresh = fresh_, outgrown](StreamSlot) {
      torch::jit::Stack stack = arguments;
      const PlainKernels plain;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      size_t next = 0;
      for (const c10::IValue& value : stack) {
        each_tensor(value, [&](const at::Tensor& result) {
          if (const at::Tensor& to = fresh.at(next++); to.defined()) to.copy_(result);
        });
      }
      for (const HostViews::Outgrown& one : outgrown) one.copy();
    });
  }

  at::Tensor give(const at::Tensor& result) {
    const at::Tensor given = views_.back(result, device_);
    if (captured_) fresh_.push_back(views_.holds(result) ? at::Tensor() : bare_view(given));
    return given;
  }

  void give_results() {
    const size_t results = op_.schema().returns().size();
    for (size_t i = stack_.size() - results; i < stack_.size(); ++i) {
      c10::IValue& value = stack_[i];
      if (value.isTensor()) {
        value = give(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> given;
        for (const at::Tensor& tensor : value.toTensorVector()) given.push_back(give(tensor));
        value = std::move(given);
      }
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::string text_;
  int device_ = 0;
  bool masked_ = false;
  bool sized_ = false;
  bool captured_ = false;
  std::vector<at::Tensor> fresh_;  // views of the results that have memory of their own
  HostViews views_;
};

}  // namespace

PlainKernels::PlainKernels()
    : autograd_(c10::autograd_dispatch_keyset_with_ADInplaceOrView),
      autocast_(c10::autocast_dispatch_keyset) {}
PlainKernels::~PlainKernels() = default;

std::vector<at::Tensor> results_of(const Launch& launch, int device,
                                   const std::function<std::vector<at::Tensor>()>& work) {
  std::vector<at::Tensor> given;
  std::vector<at::Tensor> views;
  for (const at::Tensor& result : work()) {
    given.push_back(result.defined() ? copy_to_device(result, device) : result);
    if (launch.capture()) views.push_back(bare_view(given.back()));
  }
  if (launch.capture()) {
    launch.capture()->add([work, views](StreamSlot) {
      const PlainKernels plain;
      const std::vector<at::Tensor> results = work();
      for (size_t i = 0; i < views.size(); ++i)
        if (views[i].defined()) views[i].copy_(results[i]);
    });
  }
  return given;
}

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  HostCall(op, *stack).run();
}

}  // namespace lockstep::inline v0::testing::fake
