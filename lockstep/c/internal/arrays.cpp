#include "lockstep/c/internal/arrays.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/dlpack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <limits>
#include <utility>

#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/options.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/choose.h"
#include "lockstep/launch/job_environment.h"

namespace lockstep::inline v0::c_api {
namespace {

constexpr std::array kTypes{
    std::pair{LOCKSTEP_FLOAT32, at::kFloat}, std::pair{LOCKSTEP_FLOAT64, at::kDouble},
    std::pair{LOCKSTEP_FLOAT16, at::kHalf},  std::pair{LOCKSTEP_BFLOAT16, at::kBFloat16},
    std::pair{LOCKSTEP_INT8, at::kChar},     std::pair{LOCKSTEP_INT16, at::kShort},
    std::pair{LOCKSTEP_INT32, at::kInt},     std::pair{LOCKSTEP_INT64, at::kLong},
    std::pair{LOCKSTEP_UINT8, at::kByte},    std::pair{LOCKSTEP_BOOL, at::kBool},
};

std::string number(int64_t value) {
  return std::to_string(value);
}

int32_t code_of(at::ScalarType type) {
  for (const auto& [code, known] : kTypes) {
    if (known == type) return code;
  }
  throw InvalidArgument("a tensor of " + std::string(at::toString(type)) +
                        " has no type in lockstep_array");
}

at::Device device_of(const lockstep_array& array, const std::string& name) {
  if (array.device_type == LOCKSTEP_CPU) return at::kCPU;
  if (array.device_type == LOCKSTEP_CUDA && array.device_index >= 0 &&
      array.device_index <= std::numeric_limits<c10::DeviceIndex>::max())
    return device::choose_device("cuda:" + number(array.device_index), 0, name + ": device");
  throw InvalidArgument(name + ": there is no device type " + number(array.device_type) +
                        ", index " + number(array.device_index));
}

// The number of elements. Every byte that the array reaches has an address.
int64_t check_shape(const lockstep_array& array, int64_t element, const std::string& name) {
  int64_t elements = 1;
  bool empty = false, too_many = false;
  for (int32_t i = 0; i < array.ndim; ++i) {
    const int64_t size = array.shape[i];
    const int64_t stride = array.strides != nullptr ? array.strides[i] : 0;
    if (size < 0) throw InvalidArgument(name + ": shape[" + number(i) + "] is " + number(size));
    if (stride < 0) {
      throw InvalidArgument(name + ": strides[" + number(i) + "] is " + number(stride) +
                            "; strides are 0 or more, so copy what runs backwards");
    }
    empty |= size == 0;
    too_many |= __builtin_mul_overflow(elements, size, &elements);
    int64_t reach = 0;
    too_many |= __builtin_mul_overflow(stride, size, &reach) ||
                __builtin_mul_overflow(reach, element * LOCKSTEP_MAX_DIMS, &reach);
  }
  if (empty) return 0;
  int64_t bytes = 0;
  if (too_many || __builtin_mul_overflow(elements, element, &bytes))
    throw InvalidArgument(name + ": the shape and the strides reach beyond all memory");
  return elements;
}

std::string device_text(int type) {
  const char* name = type == kDLOpenCL        ? "OpenCL"
                     : type == kDLVulkan      ? "Vulkan"
                     : type == kDLMetal       ? "Metal"
                     : type == kDLROCM        ? "ROCm"
                     : type == kDLROCMHost    ? "ROCm's memory of the CPU"
                     : type == kDLCUDAManaged ? "CUDA's managed memory"
                     : type == kDLOneAPI      ? "oneAPI"
                                              : "an unknown device";
  return std::string(name) + " (DLPack's device type " + number(type) + ")";
}

lockstep_array view_of(const DLTensor& tensor) {
  if (tensor.dtype.lanes != 1) {
    throw InvalidArgument("DLPack tensor: elements of " + number(tensor.dtype.lanes) +
                          " lanes; give one lane");
  }
  lockstep_array array{};
  for (const auto& [code, type] : kTypes) {
    const auto bits = static_cast<uint8_t>(8 * c10::elementSize(type));
    const uint8_t kind = type == at::kBool          ? kDLBool
                         : type == at::kBFloat16    ? kDLBfloat
                         : at::isFloatingType(type) ? kDLFloat
                         : type == at::kByte        ? kDLUInt
                                                    : kDLInt;
    if (tensor.dtype.code == kind && tensor.dtype.bits == bits) array.dtype = code;
  }
  if (array.dtype == 0) {
    throw InvalidArgument("DLPack tensor: no type of lockstep_array has code " +
                          number(tensor.dtype.code) + " and " + number(tensor.dtype.bits) +
                          " bits");
  }
  if (tensor.device.device_type == kDLCUDA) {
    array.device_type = LOCKSTEP_CUDA;
    array.device_index = tensor.device.device_id;
  } else if (tensor.device.device_type != kDLCPU && tensor.device.device_type != kDLCUDAHost) {
    throw InvalidArgument("DLPack tensor: it is on " + device_text(tensor.device.device_type) +
                          "; the CPU (1), memory of the CPU that CUDA has pinned (3) and CUDA (2) "
                          "are known, so copy it to one of these");
  }
  array.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  array.shape = tensor.shape;
  array.strides = tensor.strides;
  array.ndim = tensor.ndim;
  // What else is wrong is said now, not at the first use.
  tensor_of(&array, "DLPack tensor");
  return array;
}

}  // namespace

at::ScalarType dtype_of(int32_t dtype, const std::string& name) {
  for (const auto& [code, type] : kTypes) {
    if (code == dtype) return type;
  }
  throw InvalidArgument(name + ": there is no dtype " + number(dtype) +
                        "; give LOCKSTEP_FLOAT32 or another of base.h");
}

at::Tensor tensor_of(const lockstep_array* given, const std::string& name) {
  const lockstep_array& array = needed(given, name.c_str());
  const at::ScalarType type = dtype_of(array.dtype, name);
  if (array.ndim < 0 || array.ndim > LOCKSTEP_MAX_DIMS) {
    throw InvalidArgument(name + ": ndim is " + number(array.ndim) + "; it is 0 to " +
                          number(LOCKSTEP_MAX_DIMS));
  }
  if (array.ndim > 0 && array.shape == nullptr)
    throw InvalidArgument(name + ": shape is NULL, and ndim is " + number(array.ndim));
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t elements = check_shape(array, element, name);
  if (elements > 0 && array.data == nullptr)
    throw InvalidArgument(name + ": data is NULL, and the shape has " + number(elements) +
                          " elements");
  if (reinterpret_cast<uintptr_t>(array.data) % static_cast<uintptr_t>(element) != 0)
    throw InvalidArgument(name + ": data is not aligned to its elements of " + number(element) +
                          " bytes");
  const auto dims = static_cast<size_t>(array.ndim);
  const at::IntArrayRef shape(array.shape, dims);
  const auto options = at::TensorOptions().dtype(type).device(device_of(array, name));
  if (elements == 0) return at::empty(shape, options);
  try {
    if (array.strides == nullptr) return at::from_blob(array.data, shape, options);
    return at::from_blob(array.data, shape, at::IntArrayRef(array.strides, dims), options);
  } catch (const c10::Error& error) {  // CUDA knows where its memory is
    const std::string why = error.what_without_backtrace();
    throw InvalidArgument(name + ": data is no memory of " + options.device().str() + ": " +
                          why.substr(0, why.find('\n')));
  }
}

at::Tensor written_tensor(const lockstep_array* array, const std::string& name) {
  at::Tensor tensor = tensor_of(array, name);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    throw InvalidArgument(name + ": it is written, and a stride of 0 makes its elements overlap");
  return tensor;
}

namespace {

template <typename F>
std::vector<at::Tensor> each(const lockstep_array* arrays, int32_t count, const std::string& name,
                             const F& convert) {
  if (count < 0) throw InvalidArgument("the number of " + name + " is " + number(count));
  if (count > 0) needed(arrays, name.c_str());
  std::vector<at::Tensor> tensors;
  for (int32_t i = 0; i < count; ++i)
    tensors.push_back(convert(arrays + i, name + "[" + number(i) + "]"));
  return tensors;
}

}  // namespace

std::vector<at::Tensor> tensors_of(const lockstep_array* arrays, int32_t count,
                                   const std::string& name) {
  return each(arrays, count, name, tensor_of);
}

std::vector<at::Tensor> written_tensors(const lockstep_array* arrays, int32_t count,
                                        const std::string& name) {
  return each(arrays, count, name, written_tensor);
}

lockstep_array array_of(const at::Tensor& tensor) {
  lockstep_array array{};
  array.data = tensor.data_ptr();
  array.shape = tensor.sizes().data();
  array.strides = tensor.strides().data();
  array.ndim = static_cast<int32_t>(tensor.dim());
  array.dtype = code_of(tensor.scalar_type());
  array.device_type = tensor.is_cuda() ? LOCKSTEP_CUDA : LOCKSTEP_CPU;
  array.device_index = tensor.is_cuda() ? tensor.device().index() : 0;
  return array;
}

at::Device device_of(const char* device, std::optional<int> local_rank,
                     const device::VisibleDevices& visible) {
  const std::string request = text_or(device, "cpu");
  if (!local_rank && visible.has_cuda && visible.cuda > 1 &&
      (request == "cuda" || request == "auto")) {
    throw InvalidArgument(
        "device '" + request + "': no launcher has started this process, and it " + "sees " +
        number(visible.cuda) + " CUDA devices; give the number of one, such as cuda:0");
  }
  return device::choose_device(request, local_rank.value_or(0), visible);
}

at::Device device_of(const char* device) {
  const std::string request = text_or(device, "cpu");
  if (request != "cuda" && request != "auto") return device::choose_device(request, 0);
  const launch::JobEnvironment job = launch::job_environment();
  std::optional<int> local_rank;
  if (job.launcher != launch::Launcher::kNone) local_rank = job.local_rank;
  return device_of(device, local_rank, device::visible_devices());
}

}  // namespace lockstep::inline v0::c_api

namespace c_api = lockstep::c_api;

lockstep_status lockstep_array_from_dlpack(const DLManagedTensor* tensor, lockstep_array* out) {
  return c_api::guarded([&] {
    lockstep_array& result = c_api::needed(out, "out");
    result = c_api::view_of(c_api::needed(tensor, "tensor").dl_tensor);
  });
}

lockstep_status lockstep_array_from_dlpack_versioned(const DLManagedTensorVersioned* tensor,
                                                     lockstep_array* out) {
  return c_api::guarded([&] {
    lockstep_array& result = c_api::needed(out, "out");
    const DLManagedTensorVersioned& given = c_api::needed(tensor, "tensor");
    if (given.version.major != 1) {
      throw lockstep::InvalidArgument("DLPack tensor of version " +
                                      std::to_string(given.version.major) + "." +
                                      std::to_string(given.version.minor) + "; 1.x is known");
    }
    result = c_api::view_of(given.dl_tensor);
  });
}
