#include "lockstep/checkpoint/mapped_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files hold little-endian data");

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{at::kBool, "BOOL"},
                                 {at::kByte, "U8"},
                                 {at::kChar, "I8"},
                                 {at::kShort, "I16"},
                                 {at::kInt, "I32"},
                                 {at::kLong, "I64"},
                                 {at::kHalf, "F16"},
                                 {at::kBFloat16, "BF16"},
                                 {at::kFloat, "F32"},
                                 {at::kDouble, "F64"},
                                 {at::kUInt16, "U16"},
                                 {at::kUInt32, "U32"},
                                 {at::kUInt64, "U64"},
                                 {at::kFloat8_e4m3fn, "F8_E4M3"},
                                 {at::kFloat8_e5m2, "F8_E5M2"},
                                 {at::kComplexFloat, "C64"}};

}  // namespace

const char* safetensors_dtype_name(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return nullptr;
}

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const DtypeName& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

at::Tensor mapped_tensor(const std::shared_ptr<MappedFile>& file, uint64_t offset,
                         at::IntArrayRef sizes, at::ScalarType dtype, const std::string& tensor) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto numel = static_cast<size_t>(c10::multiply_integers(sizes));
  if (numel == 0) return at::empty(sizes, options);
  std::byte* data = file->bytes().data() + offset;
  const size_t element = c10::elementSize(dtype);
  if (dtype == at::kBool &&
      std::any_of(data, data + numel, [](std::byte b) { return b > std::byte{1}; })) {
    throw CheckpointError(file->name() + ": tensor '" + tensor +
                          "' has booleans other than 0 and 1; the file is damaged");
  }
  if (reinterpret_cast<uintptr_t>(data) % element != 0) {
    at::Tensor copy = at::empty(sizes, options);
    std::memcpy(copy.mutable_data_ptr(), data, numel * element);
    return copy;
  }
  return at::from_blob(data, sizes, [file](void*) {}, options);
}

}  // namespace lockstep::inline v0
