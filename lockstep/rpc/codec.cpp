#include "lockstep/rpc/codec.h"

#include <ATen/Functions.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/devices.h"

namespace lockstep::inline v0::rpc {
namespace {

constexpr int kMostNested = 100;
constexpr size_t kKeptMemory = size_t{1} << 20;  // of a writer that is reused
enum TensorForm : uint8_t { kUndefined, kDense, kSparse };

}  // namespace

void Writer::word(uint64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // little-endian, as all of Lockstep's formats
  body_.append(bytes, sizeof bytes);
}

void Writer::length(uint64_t value) {
  while (value >= 0x80) {
    byte(static_cast<uint8_t>(value | 0x80));
    value >>= 7;
  }
  byte(static_cast<uint8_t>(value));
}

void Writer::text(std::string_view value) {
  length(value.size());
  body_.append(value);
}

void Writer::tensor(const at::Tensor& value) {
  if (!value.defined()) return byte(kUndefined);
  if (!value.device().is_cpu() && !internal::can_be_named(value.device().type()))
    throw InvalidArgument("a tensor on " + value.device().str() +
                          " cannot be sent; send tensor.cpu(), and move it where it arrives");
  if (value.is_sparse()) {
    const at::Tensor entries = value.coalesce();
    byte(kSparse);
    length(static_cast<uint64_t>(entries.dim()));
    for (const int64_t size : entries.sizes()) word(static_cast<uint64_t>(size));
    tensors_.push_back(entries.indices().contiguous());
    tensors_.push_back(entries.values().contiguous());
    return;
  }
  if (value.layout() != at::kStrided)
    throw InvalidArgument("a tensor of layout " + c10::str(value.layout()) +
                          " cannot be sent; strided and sparse (COO) ones can");
  if (value.is_quantized())
    throw InvalidArgument("a quantized tensor cannot be sent; send its int_repr() and scales");
  byte(kDense);
  if (value.is_contiguous() && !value.is_conj() && !value.is_neg())
    tensors_.push_back(value);
  else
    tensors_.push_back(value.resolve_conj().resolve_neg().contiguous());
}

void Writer::clear(internal::ReferenceCodec* codec) {
  codec_ = codec;
  body_.clear();
  if (body_.capacity() > kKeptMemory) body_.shrink_to_fit();
  tensors_.clear();
  references_.clear();
}

Writer& internal::scratch_writer(ReferenceCodec* codec) {
  thread_local Writer writer;
  writer.clear(codec);
  return writer;
}

uint8_t Reader::byte() {
  if (rest_.empty()) throw DataError("a message of rpc ends too early");
  const auto value = static_cast<uint8_t>(rest_.front());
  rest_.remove_prefix(1);
  return value;
}

uint64_t Reader::word() {
  uint64_t value = 0;
  if (rest_.size() < sizeof value) throw DataError("a message of rpc ends too early");
  std::memcpy(&value, rest_.data(), sizeof value);
  rest_.remove_prefix(sizeof value);
  return value;
}

uint64_t Reader::length() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & 0x7f) << shift;
    if (next < 0x80) return value;
  }
  throw DataError("a message of rpc has a length of more than 64 bits");
}

size_t Reader::count() {
  const uint64_t value = length();
  if (value > rest_.size())
    throw DataError("a message of rpc claims " + std::to_string(value) + " elements in " +
                    std::to_string(rest_.size()) + " bytes");
  return static_cast<size_t>(value);
}

std::string_view Reader::text() {
  const size_t size = count();
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

at::Tensor Reader::next_tensor() {
  if (next_ == tensors_.size()) throw DataError("a message of rpc has too few tensors");
  return std::move(tensors_[next_++]);
}

at::Tensor Reader::as_it_came(size_t back, const at::Tensor& tensor) {
  return came_.empty() ? tensor : std::move(came_[next_ - back]);
}

at::Tensor Reader::tensor() {
  switch (byte()) {
    case kUndefined:
      return {};
    case kDense: {
      at::Tensor tensor = next_tensor();
      as_it_came(1, tensor);
      return tensor;
    }
    case kSparse: {
      const size_t dims = count();
      std::vector<int64_t> sizes(dims);
      for (auto& size : sizes) size = static_cast<int64_t>(word());
      const at::Tensor indices = next_tensor();
      const at::Tensor values = next_tensor();
      if (indices.device() != values.device())
        throw DataError("a sparse tensor of rpc lies on two devices");
      try {
        // Checked here, since tensors on their way to a device cannot be read there.
        at::_validate_sparse_coo_tensor_args(as_it_came(2, indices), as_it_came(1, values), sizes);
        return at::_sparse_coo_tensor_with_dims_and_tensors(
            indices.size(0), values.dim() - 1, sizes, indices, values,
            values.options().layout(at::kSparse), /*is_coalesced=*/true);
      } catch (const c10::Error& error) {
        throw DataError(std::string("a sparse tensor of rpc does not fit: ") +
                        error.what_without_backtrace());
      }
    }
    default:
      throw DataError("a message of rpc has a tensor of an unknown form");
  }
}

void Reader::end() {
  if (!rest_.empty() || next_ != tensors_.size())
    throw DataError("a message of rpc is longer than its types say");
  receipt_.reset();
}

Reader::Level::Level(Reader& given) : reader(given) {
  if (++reader.depth_ <= kMostNested) return;
  --reader.depth_;
  throw DataError("a message of rpc nests deeper than " + std::to_string(kMostNested));
}

bool TypeText::enter(const std::type_info& type) {
  if (std::any_of(open_.begin(), open_.end(), [&](const auto* one) { return *one == type; }))
    return false;
  open_.push_back(&type);
  return true;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  std::string text = name ? name.get() : type.name();
  // The inline namespace of the ABI is no part of what users write, and differs between releases.
  constexpr std::string_view kAbi = "lockstep::v0::";
  for (size_t at = text.find(kAbi); at != std::string::npos; at = text.find(kAbi, at))
    text.erase(at + std::string_view("lockstep::").size(), std::string_view("v0::").size());
  return text;
}

void internal::does_not_fit(const char* type, int64_t value) {
  throw DataError("the integer " + std::to_string(value) + " does not fit into " + type);
}

}  // namespace lockstep::inline v0::rpc
