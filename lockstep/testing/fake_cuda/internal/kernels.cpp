// The operators that a device needs of its own: memory, views, copies, values for the host. All
// others run by the fallback.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/fallback.h"
#include "lockstep/testing/fake_cuda/internal/host_views.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"
#include "lockstep/testing/fake_cuda/internal/pinned.h"

namespace lockstep::inline v0::testing::fake {
namespace {

int device_or_current(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const MadeBy maker("aten::empty");
  const DeviceNow now(device_or_current(device));
  return at::detail::empty_generic(size, device_allocator(), kDeviceKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const MadeBy maker("aten::empty_strided");
  const DeviceNow now(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kDeviceKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

const at::Tensor& resize_sizes(const at::Tensor& self, at::IntArrayRef size,
                               std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) resize_tensor(self, size, std::nullopt);
  if (format && *format != at::MemoryFormat::Preserve)
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_parts(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                      at::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(),
              "Attempted to set the storage of a tensor on device ", self.device(),
              " to a storage on different device ", source.device());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  resize_tensor(self, size, stride.data() == nullptr ? at::OptionalIntArrayRef() : stride);
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_parts(self, std::move(source), 0, {count}, {});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_parts(self, source.storage(), source.storage_offset(), source.sizes(),
                   source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  return set_parts(self,
                   at::Storage(at::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0),
                               device_allocator(), true),
                   0, {0}, {});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  if (Block* block = machine().memory.find(self.storage().data()))
    machine().memory.record_stream(*block, slot_of(stream));
}

void count_copy() {
  FakeCudaCounts counts;
  counts.operations = counts.copies = 1;
  count(counts);
}

// A view for a replay; of the host's memory, the tensor.
at::Tensor bare(const at::Tensor& tensor) {
  return tensor.is_cuda() ? bare_view(tensor) : tensor;
}

void copy_elements(at::Tensor& to, const at::Tensor& from) {
  HostViews views;
  const PlainKernels plain;
  const auto host = [&](const at::Tensor& tensor) {
    return tensor.is_cuda() ? views.of(tensor) : tensor;
  };
  host(to).copy_(host(from));
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.numel() == 0 || self.is_same(source)) return self;
  count_copy();
  Timeline& timeline = machine().timeline;
  // A copy is the source's device's, but from the host the target's.
  const int device = source.is_cuda() ? source.device().index() : self.device().index();
  const StreamSlot stream = current_slot(device);
  const std::string name = "aten::copy_";
  Launch launch(name, stream);
  launch.reads(source);
  launch.writes(self);
  if (source.is_cuda() && self.is_cuda() && self.device() != source.device()) {
    // Between devices it comes after what both streams have been given, and before what comes next.
    const StreamSlot other = current_slot(self.device().index());
    timeline.order(stream, timeline.now(other, *Host::current()));
    launch.start();
    timeline.order(other, launch.moment().clock);
    copy_elements(self, source);
    return self;
  }
  launch.start();
  const at::Tensor& host = self.is_cuda() ? source : self;
  const void* data = host.is_cuda() ? nullptr : host.const_data_ptr();
  if (launch.capture() && (data == nullptr || (non_blocking && pinned_memory().holds(data)))) {
    launch.capture()->add([to = bare(self), from = bare(source), data](StreamSlot) {
      const PlainKernels plain;
      const bool opened = data != nullptr && pinned_memory().open(data);
      to.copy_(from);
      if (opened) pinned_memory().close(data);
    });
  }
  const bool pinned = data != nullptr && pinned_memory().open(data);
  copy_elements(self, source);
  if (pinned) pinned_memory().close(data);
  if (pinned && non_blocking)
    pinned_memory().copying(data, launch.moment().stamp, launch.place(), !self.is_cuda());
  else if (data != nullptr)
    stop_host(self.is_cuda() ? HostStop::kCopyToDevice : HostStop::kCopyToHost, name, stream,
              launch.moment().clock);
  return self;
}

at::Scalar item(const at::Tensor& self) {
  count_copy();
  const std::string name = "aten::_local_scalar_dense";
  Launch launch(name, current_slot(self.device().index()));
  launch.reads(self);
  launch.start();
  HostViews views;
  const PlainKernels plain;
  const at::Scalar value = views.of(self).item();
  stop_host(HostStop::kItem, name, launch.stream(), launch.moment().clock);
  return value;
}

// The CPU's kernel of this one draws from the CPU's default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  const std::string name = "aten::native_dropout";
  const MadeBy maker(name);
  const int device = input.device().index();
  FakeCudaCounts counts;
  counts.operations = counts.fallbacks = 1;
  count(counts);
  Launch launch(name, current_slot(device));
  launch.reads(input);
  launch.start();
  HostViews views;
  const PlainKernels plain;
  const auto work = [host = views.of(input), p, keeps = !train.value_or(true) || p == 0, device] {
    at::Tensor mask = at::empty_like(host, host.options().dtype(at::kBool));
    if (keeps)
      mask.fill_(true);
    else
      mask.bernoulli_(1 - p, host_generator({}, device));
    const double scale = keeps ? 1 : (p == 1 ? 0 : 1 / (1 - p));
    return std::vector<at::Tensor>{host.mul(mask).mul_(scale), mask};
  };
  const std::vector<at::Tensor> results = results_of(launch, device, work);
  return {results[0], results[1]};
}

// What is one kernel on a GPU, and on the CPU maybe composed of others: it is one operation here,
// and by the CPU's way of it.
bool is_one_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const std::string& name = op.schema().name();
  if (op.hasKernelForDispatchKey(DispatchKey::CUDA)) return false;
  if (name.starts_with("aten::_foreach_") || name == "aten::convolution" ||
      name == "aten::convolution_backward")
    return true;
  return op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd));
}

}  // namespace

void register_kernels() {
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__,
                            __LINE__);
  own.impl("empty.memory_format", &empty);
  own.impl("empty_strided", &empty_strided);
  own.impl("as_strided", &as_strided);
  own.impl("view", &view);
  own.impl("_reshape_alias", &reshape_alias);
  own.impl("resize_", &resize_sizes);
  own.impl("set_.source_Storage", &set_storage);
  own.impl("set_.source_Storage_storage_offset", &set_parts);
  own.impl("set_.source_Tensor", &set_tensor);
  own.impl("set_", &set_nothing);
  own.impl("record_stream", &record_stream);
  own.impl("copy_", &copy);
  own.impl("_local_scalar_dense", &item);
  own.impl("native_dropout", &native_dropout);
  register_attention(own);

  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.getNamespace() == "aten" && is_one_kernel(*op))
      own.impl(c10::toString(name).substr(6).c_str(),
               torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
  static torch::Library others(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__,
                               __LINE__);
  others.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace lockstep::inline v0::testing::fake
