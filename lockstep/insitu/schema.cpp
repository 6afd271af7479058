#include "lockstep/insitu/schema.h"

#include <array>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::insitu {
namespace {

struct Kind {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Kind, kDTypes> kKinds = {{{"none", 0},
                                               {"float32", 4},
                                               {"float64", 8},
                                               {"float16", 2},
                                               {"bfloat16", 2},
                                               {"int8", 1},
                                               {"int16", 2},
                                               {"int32", 4},
                                               {"int64", 8},
                                               {"uint8", 1},
                                               {"bool", 1}}};
constexpr size_t kMaxBytes = size_t{1} << 40;  // of a sample

const Kind& kind(DType dtype) {
  const auto index = static_cast<uint32_t>(dtype);
  if (index == 0 || index >= kDTypes)
    throw InvalidArgument("insitu: there is no dtype " + std::to_string(index) + "; 1 to " +
                          std::to_string(kDTypes - 1) + " are known");
  return kKinds[index];
}

// The bytes of a field, where they and their sum stay in bounds.
size_t checked_bytes(const Field& field) {
  size_t bytes = kind(field.dtype).bytes;
  for (const int64_t dim : field.shape) {
    if (dim < 1) throw InvalidArgument("insitu: a dim below 1 in the field " + field.to_string());
    if (static_cast<uint64_t>(dim) > kMaxBytes / bytes)
      throw InvalidArgument("insitu: more than 2^40 bytes in the field " + field.to_string());
    bytes *= static_cast<size_t>(dim);
  }
  return bytes;
}

void check_field_name(const std::string& name) {
  if (name.empty()) throw InvalidArgument("insitu: a field without a name");
  if (name.size() > Schema::kMaxName)
    throw InvalidArgument("insitu: the field name '" + name + "' is longer than " +
                          std::to_string(Schema::kMaxName) + " characters");
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20)
      throw InvalidArgument("insitu: a field name with a control character");
  }
}

// Reads numbers from bytes, never past their end.
class Reader {
 public:
  Reader(const std::byte* bytes, size_t count) : at_(bytes), left_(count) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text(size_t size) {
    const std::byte* from = take(size);
    return {reinterpret_cast<const char*>(from), size};
  }
  bool done() const { return left_ == 0; }

 private:
  const std::byte* take(size_t size) {
    if (size > left_) throw DataError("insitu: the ring's schema is cut");
    left_ -= size;
    return std::exchange(at_, at_ + size);
  }
  const std::byte* at_;
  size_t left_;
};

template <typename T>
void put(std::vector<std::byte>& to, T value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), from, from + sizeof value);
}

}  // namespace

size_t size_of(DType dtype) {
  return kind(dtype).bytes;
}

std::string_view name_of(DType dtype) {
  return kind(dtype).name;
}

size_t Field::elements() const {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

std::string Field::to_string() const {
  return name + " " + std::string(name_of(dtype)) + " [" + joined(shape) + "]";
}

Schema::Schema(std::vector<Field> fields) : fields_(std::move(fields)) {
  if (fields_.empty()) throw InvalidArgument("insitu: a sample needs at least one field");
  if (fields_.size() > kMaxFields)
    throw InvalidArgument("insitu: " + std::to_string(fields_.size()) + " fields; at most " +
                          std::to_string(kMaxFields) + " are possible");
  for (size_t i = 0; i < fields_.size(); ++i) {
    const Field& field = fields_[i];
    check_field_name(field.name);
    if (field.shape.size() > kMaxDims)
      throw InvalidArgument("insitu: more than " + std::to_string(kMaxDims) +
                            " dims in the field " + field.to_string());
    for (size_t j = 0; j < i; ++j) {
      if (fields_[j].name == field.name)
        throw InvalidArgument("insitu: two fields are named '" + field.name + "'");
    }
    offsets_.push_back(sample_bytes_);
    sample_bytes_ += (checked_bytes(field) + kAlignment - 1) / kAlignment * kAlignment;
    if (sample_bytes_ > kMaxBytes)
      throw InvalidArgument("insitu: more than 2^40 bytes in a sample, up to the field " +
                            field.to_string());
  }
}

size_t Schema::index_of(std::string_view name) const {
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].name == name) return i;
  }
  throw InvalidArgument("insitu: there is no field '" + std::string(name) +
                        "'; the sample has: " + to_string());
}

std::string Schema::to_string() const {
  std::vector<std::string> texts;
  for (const Field& field : fields_) texts.push_back(field.to_string());
  return joined(texts, "; ");
}

std::string difference(const Schema& theirs, const Schema& ours) {
  for (size_t i = 0; i < theirs.size() || i < ours.size(); ++i) {
    if (i >= theirs.size()) return "the ring has no field " + ours[i].to_string();
    if (i >= ours.size()) return "the ring has a further field " + theirs[i].to_string();
    if (!(theirs[i] == ours[i]))
      return "field " + std::to_string(i) + " is " + theirs[i].to_string() +
             " in the ring, and here " + ours[i].to_string();
  }
  return "";
}

std::vector<std::byte> encode(const Schema& schema) {
  std::vector<std::byte> bytes;
  put(bytes, static_cast<uint32_t>(schema.size()));
  for (const Field& field : schema.fields()) {
    put(bytes, static_cast<uint32_t>(field.dtype));
    put(bytes, static_cast<uint32_t>(field.shape.size()));
    put(bytes, static_cast<uint32_t>(field.name.size()));
    for (const char c : field.name) bytes.push_back(static_cast<std::byte>(c));
    for (const int64_t dim : field.shape) put(bytes, dim);
  }
  return bytes;
}

Schema decode_schema(const std::byte* bytes, size_t count) {
  Reader reader(bytes, count);
  const auto fields = reader.number<uint32_t>();
  if (fields > Schema::kMaxFields) throw DataError("insitu: the ring's schema has no sense");
  std::vector<Field> read(fields);
  for (Field& field : read) {
    const auto dtype = reader.number<uint32_t>();
    const auto dims = reader.number<uint32_t>();
    const auto name = reader.number<uint32_t>();
    if (dtype == 0 || dtype >= kDTypes || dims > Schema::kMaxDims || name > Schema::kMaxName)
      throw DataError("insitu: the ring's schema has no sense");
    field.dtype = static_cast<DType>(dtype);
    field.name = reader.text(name);
    for (uint32_t i = 0; i < dims; ++i) field.shape.push_back(reader.number<int64_t>());
  }
  if (!reader.done()) throw DataError("insitu: the ring's schema has no sense");
  try {
    return Schema(std::move(read));
  } catch (const InvalidArgument& error) {
    throw DataError("insitu: the ring's schema has no sense: " + std::string(error.what()));
  }
}

}  // namespace lockstep::inline v0::insitu
