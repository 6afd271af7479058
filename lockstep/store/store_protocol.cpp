#include "lockstep/store/store_protocol.h"

#include "lockstep/core/errors.h"
#include "lockstep/store/key_table.h"
#include "lockstep/wire/frames.h"

namespace lockstep::inline v0 {
namespace {

template <typename T>
void put(std::string& out, T value) {
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(bits & 0xff);
    bits = static_cast<decltype(bits)>(sizeof(T) > 1 ? bits >> 8 : 0);
  }
}

void put_string(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

template <typename T>
T load(std::string_view bytes) {
  uint64_t bits = 0;
  for (size_t i = sizeof(T); i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
  return static_cast<T>(bits);
}

class Fields {
 public:
  explicit Fields(std::string_view rest) : rest_(rest) {}

  template <typename T>
  T take() {
    return load<T>(take_bytes(sizeof(T)));
  }
  std::string take_string(size_t limit) {
    const auto size = take<uint32_t>();
    if (size > limit)
      throw StoreError("malformed store message: a field of " + std::to_string(size) + " bytes");
    return std::string(take_bytes(size));
  }
  std::string take_key() {
    std::string key = take_string(kMaxStoreKey);
    if (key.empty()) throw StoreError("malformed store message: an empty key");
    return key;
  }
  void finish() const {
    if (!rest_.empty()) throw StoreError("malformed store message: bytes left over");
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view take_bytes(size_t size) {
    if (size > rest_.size()) throw StoreError("malformed store message: cut short");
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
};

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string body;
  put(body, request.id);
  put(body, static_cast<uint8_t>(request.op));
  if (request.op == StoreOp::kWait) put(body, static_cast<uint32_t>(request.keys.size()));
  for (const std::string& key : request.keys) put_string(body, key);
  if (request.op == StoreOp::kSet || request.op == StoreOp::kCompareSet)
    put_string(body, request.value);
  if (request.op == StoreOp::kCompareSet) put_string(body, request.expected);
  if (request.op == StoreOp::kAdd) put(body, request.delta);
  return wire::make_frame(body, kMaxStoreFrame);
}

std::string encode(const StoreResponse& response) {
  std::string body;
  put(body, response.id);
  put(body, static_cast<uint8_t>(response.status));
  put(body, response.number);
  put_string(body, response.value);
  return wire::make_frame(body, kMaxStoreFrame);
}

StoreRequest decode_store_request(std::string_view body) {
  Fields fields(body);
  StoreRequest request;
  request.id = fields.take<uint64_t>();
  const auto op = fields.take<uint8_t>();
  if (op < static_cast<uint8_t>(StoreOp::kSet) || op > static_cast<uint8_t>(StoreOp::kCancel)) {
    throw StoreError("malformed store message: operation " + std::to_string(op));
  }
  request.op = static_cast<StoreOp>(op);
  size_t keys = request.op == StoreOp::kCancel ? 0 : 1;
  if (request.op == StoreOp::kWait) {
    keys = fields.take<uint32_t>();
    // A key takes at least five bytes, so an impossible count must not reserve memory.
    if (keys > fields.left() / 5) throw StoreError("malformed store message: cut short");
  }
  request.keys.reserve(keys);
  for (size_t i = 0; i < keys; ++i) request.keys.push_back(fields.take_key());
  if (request.op == StoreOp::kSet || request.op == StoreOp::kCompareSet) {
    request.value = fields.take_string(kMaxStoreValue);
  }
  if (request.op == StoreOp::kCompareSet) request.expected = fields.take_string(kMaxStoreValue);
  if (request.op == StoreOp::kAdd) request.delta = fields.take<int64_t>();
  fields.finish();
  return request;
}

StoreResponse decode_store_response(std::string_view body) {
  Fields fields(body);
  StoreResponse response;
  response.id = fields.take<uint64_t>();
  const auto status = fields.take<uint8_t>();
  if (status > static_cast<uint8_t>(StoreStatus::kError)) {
    throw StoreError("malformed store message: status " + std::to_string(status));
  }
  response.status = static_cast<StoreStatus>(status);
  response.number = fields.take<int64_t>();
  response.value = fields.take_string(kMaxStoreValue);
  fields.finish();
  return response;
}

}  // namespace lockstep::inline v0
