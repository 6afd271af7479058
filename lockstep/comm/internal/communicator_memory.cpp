// Memory that all ranks of a communicator get from its engine.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include <cerrno>
#include <utility>

#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// The bytes of a tensor of this shape; throws for an impossible shape. `who` names the caller in
// the error.
int64_t bytes_of_shape(const std::string& who, at::IntArrayRef shape, at::ScalarType dtype) {
  if (!is_supported_dtype(dtype)) {
    throw InvalidArgument(who + ": dtype " + c10::toString(dtype) +
                          " is not carried by collectives");
  }
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t dim : shape) {
    if (dim < 0) throw InvalidArgument(who + ": a dimension is negative");
    if (dim == 0) bytes = 0;  // without regard to the other sizes
  }
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      throw InvalidArgument(who + ": a tensor of shape [" + joined(shape) +
                            "] has more bytes than 64 bits can count; make it smaller");
    }
  }
  return bytes;
}

// The memory as a tensor. What counts this thread's memory, libtorch's profiler or LiveBytes, is
// told of `counted` bytes of it, now and when the tensor is gone.
at::Tensor tensor_of(SymmetricMemory memory, at::IntArrayRef shape,
                     const at::TensorOptions& options, int64_t counted) {
  const at::Device device = options.device();
  void* const data = memory.data;
  const bool tells = c10::memoryProfilingEnabled();
  const auto tell = [data, device](int64_t bytes) {
    c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, device);
  };
  if (tells) tell(counted);
  return at::from_blob(
      data, shape,
      [owner = std::move(memory.owner), tells, tell, counted](void*) {
        if (tells && c10::memoryProfilingEnabled()) tell(-counted);
      },
      options);
}

}  // namespace

// Memory that all ranks request from the engine; none for 0 bytes. All ranks learn whether all
// requests succeeded, and whether they were equal.
SymmetricMemory Communicator::Impl::allocate_together(const char* who, int64_t bytes,
                                                      SymmetricMemory (Backend::*allocate)(int64_t),
                                                      Site site) {
  check_caller(who);
  SymmetricMemory memory;
  std::exception_ptr failure;
  if (bytes > 0) {
    const Entry entry(*this);
    throw_if_broken();
    try {
      memory = ((*backend_).*allocate)(bytes);
    } catch (const SystemError&) {
      failure = std::current_exception();
    }
  }
  const std::string text = std::string(who) + ", " + std::to_string(bytes) + " bytes";
  const auto agree = [&] {
    OpArgs args;
    args.op = Op::kAllReduce;
    args.input = args.output = at::full({1}, failure ? 0 : 1, at::kByte);
    args.reduce = ReduceOp::kMin;
    args.note = call_note(text);
    args.site = site;
    run(args);
    if (failure) std::rethrow_exception(failure);
    if (args.output.const_data_ptr<uint8_t>()[0] == 0) {
      throw system_error(
          std::string(who) + ": another rank could not get its " + std::to_string(bytes) + " bytes",
          ENOMEM);
    }
  };
  agree();
  if (memory.data == nullptr) return memory;
  try {
    memory.warm();
  } catch (const SystemError&) {
    failure = std::current_exception();
  }
  if (order_ != nullptr) agree();  // a device's memory is opened there
  return memory;
}

at::Tensor Communicator::Impl::symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype,
                                               Site site) {
  constexpr const char* kName = "symmetric_empty";
  const int64_t bytes = bytes_of_shape(kName, shape, dtype);
  SymmetricMemory memory = allocate_together(kName, bytes, &Backend::allocate_symmetric, site);
  const auto options = at::TensorOptions().dtype(dtype).device(device_);
  if (memory.data == nullptr) return at::empty(shape, options);
  return tensor_of(std::move(memory), shape, options, bytes);
}

at::Tensor Communicator::Impl::shared_empty(at::IntArrayRef shape, at::ScalarType dtype,
                                            Site site) {
  constexpr const char* kName = "shared_empty";
  const int64_t bytes = bytes_of_shape(kName, shape, dtype);
  if (host_) return host_->shared_empty(shape, dtype, site);
  if (!capabilities().shared_memory)
    throw InvalidArgument("shared_empty: backend " + capabilities().backend +
                          " has no memory that ranks share; local, shm and hierarchical have");
  SymmetricMemory memory = allocate_together(kName, bytes, &Backend::allocate_shared, site);
  if (memory.data == nullptr) return at::zeros(shape, dtype);  // for 0 bytes
  // There is one for all of them, and each counts its share.
  return tensor_of(std::move(memory), shape, at::TensorOptions(dtype),
                   bytes / topology_.local_size);
}

}  // namespace lockstep::inline v0
