#include "lockstep/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw CheckpointError(file + ": " + what + "; the file is damaged or not safetensors");
}

// Handles the JSON while it is parsed. A header has a fixed structure, so the position in it is one
// of these:
enum class Place { kStart, kTop, kTensor, kShape, kOffsets, kMetadata, kEnd };

class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderSax(const std::string& file) : file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  // The safetensors library accepts null for no metadata.
  bool null() override {
    return (place_ == Place::kTop && key_ == "__metadata__") || unexpected("null");
  }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected("the number " + shown(text));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_integer(number_integer_t value) override {
    return unexpected("the number " + std::to_string(value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return unexpected("the dim " + std::to_string(value));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return unexpected("the number " + std::to_string(value));
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(key_, text).second)
        fail(file_, "metadata key " + shown(key_) + " appears twice");
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      entry_.dtype = text;
      return true;
    }
    return unexpected("the string " + shown(text));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      entry_ = {.name = key_, .dtype = {}, .shape = {}};
      offsets_ = 0;
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    key_ = text;
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second) fail(file_, "tensor " + shown(text) + " appears twice");
    } else if (place_ == Place::kTensor) {
      bool* seen = text == "dtype"          ? &seen_dtype_
                   : text == "shape"        ? &seen_shape_
                   : text == "data_offsets" ? &seen_offsets_
                                            : nullptr;
      if (seen == nullptr) fail(file_, where() + " has an unknown key " + shown(text));
      if (*seen) fail(file_, where() + " has " + shown(text) + " twice");
      *seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
        fail(file_, where() + " lacks its " +
                        (!seen_dtype_   ? "dtype"
                         : !seen_shape_ ? "shape"
                                        : "data_offsets"));
      }
      header_.entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2)
      fail(file_, where() + " needs two data_offsets");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(file_, "its header is not JSON at byte " + std::to_string(position));
  }

 private:
  std::string where() const { return "tensor " + shown(entry_.name); }

  [[noreturn]] bool unexpected(const std::string& what) {
    if (place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets) {
      fail(file_, where() + " has " + what + " in its " + shown(key_));
    }
    if (place_ == Place::kMetadata)
      fail(file_, "metadata " + shown(key_) + " is " + what + ", not a string");
    if (place_ == Place::kTop)
      fail(file_, "tensor " + shown(key_) + " is " + what + ", not an object");
    fail(file_, "its header is " + what + ", not an object");
  }

  const std::string& file_;
  SafetensorsHeader header_;
  SafetensorsEntry entry_;
  std::set<std::string, std::less<>> names_;
  std::string key_;
  Place place_ = Place::kStart;
  int offsets_ = 0;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
};

void check_entry(const SafetensorsEntry& entry, uint64_t data_bytes, const std::string& file) {
  const std::string where = "tensor " + shown(entry.name);
  uint64_t bytes = safetensors_element_size(entry.dtype);
  if (bytes == 0)
    throw CheckpointError(file + ": " + where + " has the dtype " + shown(entry.dtype) +
                          ", which is not supported");
  // Strides are products of the non-zero dims, which must not overflow even if the tensor is empty.
  bool empty = false;
  for (const int64_t dim : entry.shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(dim, 1)), &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(file, where + " has a shape too large to exist");
    }
  }
  if (empty) bytes = 0;
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(file, where + " lies at bytes " + std::to_string(entry.begin) + " to " +
                   std::to_string(entry.end) + " of " + std::to_string(data_bytes));
  }
  if (entry.end - entry.begin != bytes) {
    fail(file, where + " has " + std::to_string(entry.end - entry.begin) +
                   " bytes, but its shape and dtype need " + std::to_string(bytes));
  }
}

}  // namespace

uint64_t safetensors_element_size(std::string_view dtype) {
  struct Size {
    std::string_view name;
    uint64_t bytes;
  };
  static constexpr Size kSizes[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},
                                    {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
                                    {"BF16", 2},    {"U32", 4}, {"I32", 4}, {"F32", 4},
                                    {"U64", 8},     {"I64", 8}, {"F64", 8}, {"C64", 8}};
  for (const Size& size : kSizes) {
    if (size.name == dtype) return size.bytes;
  }
  return 0;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file) {
  if (json.size() > kMaxSafetensorsHeader) fail(file, "its header is longer than 100 MB");
  HeaderSax sax(file);
  nlohmann::json::sax_parse(json, &sax);
  SafetensorsHeader header = sax.take();
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t filled = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    check_entry(entry, data_bytes, file);
    if (entry.begin != filled) {
      fail(file, "tensor " + shown(entry.name) +
                     (entry.begin < filled ? " overlaps another" : " leaves a hole before it"));
    }
    filled = entry.end;
  }
  if (filled != data_bytes) {
    fail(file, "its tensors have " + std::to_string(filled) + " bytes, but " +
                   std::to_string(data_bytes) + " follow the header");
  }
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries) {
    json[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("a name or value for a safetensors file is not UTF-8");
  }
  constexpr size_t kLength = 8, kAlignment = 64;
  text.append((kAlignment - (kLength + text.size()) % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace lockstep::inline v0
