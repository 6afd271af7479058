// Schema: the named arrays of which a ring's sample is made, each with a dtype and a shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::insitu {

// The numbers are part of the ring's memory, and those of the C interface. 0 is none.
enum class DType : uint32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kUInt8 = 9,
  kBool = 10,
};
inline constexpr uint32_t kDTypes = 11;  // numbers, with 0

// Bytes of an element. Throws: InvalidArgument for another number.
LOCKSTEP_API size_t size_of(DType dtype);
LOCKSTEP_API std::string_view name_of(DType dtype);  // "float32"

// One array of a sample, contiguous, the last dim varies fastest.
struct LOCKSTEP_API Field {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // empty: one number

  bool operator==(const Field&) const = default;
  size_t elements() const;  // the product of the shape
  // The size of the array.
  size_t bytes() const { return elements() * size_of(dtype); }
  std::string to_string() const;  // "velocity float32 [3, 64, 64]"
};

// The fields of a sample, in order. A value.
// Thread-safety: as a standard container.
class LOCKSTEP_API Schema {
 public:
  static constexpr size_t kMaxFields = 64;
  static constexpr size_t kMaxName = 63;
  static constexpr size_t kMaxDims = 8;
  static constexpr size_t kAlignment = 64;  // of each field's array in the memory

  Schema() = default;
  // Throws: InvalidArgument that names the field: no fields, a name that is empty, long or there
  // twice, a dim below 1, too many dims, or more than 2^40 bytes in all.
  explicit Schema(std::vector<Field> fields);

  // Whether there is no field; only a default one has none.
  bool empty() const { return fields_.empty(); }
  // The number of fields.
  size_t size() const { return fields_.size(); }
  // The field at a place below size().
  const Field& operator[](size_t index) const { return fields_[index]; }
  // All fields, in order.
  const std::vector<Field>& fields() const { return fields_; }
  // Throws: InvalidArgument that lists the fields.
  size_t index_of(std::string_view name) const;
  // Where the field's array begins in a sample; a multiple of kAlignment.
  size_t offset(size_t index) const { return offsets_[index]; }
  // The size of a whole sample with its padding; a multiple of kAlignment.
  size_t sample_bytes() const { return sample_bytes_; }
  std::string to_string() const;  // the fields, with "; " between them

  bool operator==(const Schema& other) const { return fields_ == other.fields_; }

 private:
  std::vector<Field> fields_;
  std::vector<size_t> offsets_;
  size_t sample_bytes_ = 0;
};

// The first difference of two schemas in a sentence, which names the field and both forms; "" where
// they are equal. `theirs` is the ring's.
LOCKSTEP_API std::string difference(const Schema& theirs, const Schema& ours);

// A schema as bytes, and back. The bytes may come from a process that is not to be trusted.
LOCKSTEP_API std::vector<std::byte> encode(const Schema& schema);
// Throws: DataError for bytes that are no schema.
LOCKSTEP_API Schema decode_schema(const std::byte* bytes, size_t count);
// The most bytes of encode().
inline constexpr size_t kMaxEncodedSchema =
    8 + Schema::kMaxFields * (12 + Schema::kMaxName + 8 * Schema::kMaxDims);

}  // namespace lockstep::inline v0::insitu
