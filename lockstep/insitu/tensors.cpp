#include "lockstep/insitu/tensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::insitu {
namespace {

constexpr std::array<std::pair<DType, c10::ScalarType>, kDTypes - 1> kTypes = {{
    {DType::kFloat32, c10::kFloat},
    {DType::kFloat64, c10::kDouble},
    {DType::kFloat16, c10::kHalf},
    {DType::kBFloat16, c10::kBFloat16},
    {DType::kInt8, c10::kChar},
    {DType::kInt16, c10::kShort},
    {DType::kInt32, c10::kInt},
    {DType::kInt64, c10::kLong},
    {DType::kUInt8, c10::kByte},
    {DType::kBool, c10::kBool},
}};

Field field_of(const std::string& name, const at::Tensor& tensor) {
  return {name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
}

// [samples, shape...] of every field, not initialised.
std::vector<at::Tensor> empty_stack(const Schema& schema, size_t samples) {
  std::vector<at::Tensor> stacked;
  for (const Field& field : schema.fields()) {
    std::vector<int64_t> shape{static_cast<int64_t>(samples)};
    shape.insert(shape.end(), field.shape.begin(), field.shape.end());
    stacked.push_back(at::empty(shape, at::TensorOptions(scalar_type(field.dtype))));
  }
  return stacked;
}

void copy_sample(const Batch& batch, size_t sample, const Schema& schema,
                 const std::vector<at::Tensor>& to, size_t row) {
  for (size_t i = 0; i < schema.size(); ++i) {
    const size_t bytes = schema[i].bytes();
    std::memcpy(static_cast<char*>(to[i].mutable_data_ptr()) + row * bytes, batch.data(sample, i),
                bytes);
  }
}

}  // namespace

c10::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw InvalidArgument("insitu: libtorch has no dtype " +
                        std::to_string(static_cast<uint32_t>(dtype)));
}

DType dtype_of(c10::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw InvalidArgument(std::string("insitu: a ring has no dtype ") + c10::toString(type));
}

Schema schema_of(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  if (names.size() != tensors.size())
    throw InvalidArgument("insitu: " + std::to_string(names.size()) + " names for " +
                          std::to_string(tensors.size()) + " tensors");
  std::vector<Field> fields;
  for (size_t i = 0; i < names.size(); ++i) fields.push_back(field_of(names[i], tensors[i]));
  return Schema(std::move(fields));
}

std::vector<at::Tensor> view_sample(Batch& batch, size_t sample) {
  // All tensors of the sample own it together.
  const auto one = std::make_shared<Batch>(batch.split(sample));
  std::vector<at::Tensor> views;
  for (size_t i = 0; i < one->schema().size(); ++i) {
    const Field& field = one->schema()[i];
    // from_blob takes a pointer to what may be written.
    void* const memory = const_cast<void*>(one->data(0, i));  // NOLINT
    views.push_back(at::from_blob(
        memory, field.shape, [one](void*) {}, at::TensorOptions(scalar_type(field.dtype))));
  }
  return views;
}

std::vector<at::Tensor> stack(const Batch& batch) {
  const Schema& schema = batch.schema();
  std::vector<at::Tensor> stacked = empty_stack(schema, batch.size());
  for (size_t row = 0; row < batch.size(); ++row) copy_sample(batch, row, schema, stacked, row);
  return stacked;
}

std::vector<at::Tensor> take_tensors(Consumer& ring, size_t count, Deadline deadline) {
  if (count == 0) throw InvalidArgument("insitu: a batch of no samples");
  std::vector<at::Tensor> stacked = empty_stack(ring.schema(), count);
  size_t rows = 0;
  while (rows < count) {
    const Batch batch = ring.take(1, deadline);
    if (batch.empty()) break;
    copy_sample(batch, 0, ring.schema(), stacked, rows++);
  }
  for (at::Tensor& tensor : stacked) tensor = tensor.narrow(0, 0, static_cast<int64_t>(rows));
  return stacked;
}

bool push_tensors(Producer& ring, const std::vector<at::Tensor>& tensors, Deadline deadline) {
  const Schema& schema = ring.schema();
  if (tensors.size() != schema.size())
    throw InvalidArgument("insitu: " + std::to_string(tensors.size()) +
                          " tensors; the sample has: " + schema.to_string());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Field here = field_of(schema[i].name, tensors[i]);
    if (!(here == schema[i]))
      throw InvalidArgument("insitu: field " + std::to_string(i) + " is " + schema[i].to_string() +
                            " in the ring, and the tensor is " + here.to_string());
  }
  auto slot = ring.begin(deadline);
  if (!slot) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_cpu() && tensors[i].is_contiguous()) {
      slot->write(i, tensors[i].const_data_ptr());
    } else {
      at::from_blob(slot->data(i), schema[i].shape, at::TensorOptions(scalar_type(schema[i].dtype)))
          .copy_(tensors[i]);
    }
  }
  slot->commit();
  return true;
}

}  // namespace lockstep::inline v0::insitu
