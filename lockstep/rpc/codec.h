// Codec: encodes arguments and results by their C++ types, which both ends must agree on.
//
// Types: bool, integers, floating-point numbers, std::string, at::Tensor, std::vector, std::array,
// std::map and std::unordered_map, std::optional, std::pair and std::tuple, RRef (rref.h), and
// structs that list their fields:
//
//   struct Observation {
//     at::Tensor state;
//     double reward = 0;
//     bool last = false;
//     template <typename Visit>
//     void reflect(Visit&& visit) {
//       visit("state", state);
//       visit("reward", reward);
//       visit("last", last);
//     }
//   };
//
// All integers travel as 64 bits and are checked on arrival, so that int and int64_t are
// compatible; so are float and double. Received data is never executed or trusted: a value that
// does not fit is DataError.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/rpc/message.h"

namespace lockstep::inline v0::rpc {

namespace internal {
class Receipt;
class Reference;
class ReferenceCodec;
}  // namespace internal

// A message that is being written. Tensors keep their place in `tensors`; the rest is bytes.
class LOCKSTEP_API Writer {
 public:
  // `codec` writes RRefs; null where there is no agent.
  explicit Writer(internal::ReferenceCodec* codec = nullptr) : codec_(codec) {}

  void byte(uint8_t value) { body_.push_back(static_cast<char>(value)); }  // 1 byte
  void word(uint64_t value);                                               // 8 bytes
  void length(uint64_t value);                               // 1 byte for less than 128, and so on
  void text(std::string_view value);                         // the length, then the bytes
  void raw(std::string_view bytes) { body_.append(bytes); }  // the bytes alone
  // Undefined, dense or sparse (COO). For a tensor on a device, the sender of the message looks up
  // the destination.
  void tensor(const at::Tensor& value);

  const std::string& body() const { return body_; }  // what was written, without tensors
  internal::Tensors& tensors() { return tensors_; }  // in the order in which they were written
  internal::ReferenceCodec* codec() const { return codec_; }  // null where there is no agent
  // References that were written: the message owns them until it is acknowledged.
  std::vector<std::shared_ptr<internal::Reference>>& references() { return references_; }
  // Empties the writer; keeps its memory.
  void clear(internal::ReferenceCodec* codec);

 private:
  internal::ReferenceCodec* codec_;
  std::string body_;
  internal::Tensors tensors_;
  std::vector<std::shared_ptr<internal::Reference>> references_;
};

// A received message; its bytes outlive the reader.
// Throws: DataError for data that is missing or does not fit.
class LOCKSTEP_API Reader {
 public:
  // `came`: where tensors are moving on to devices, the received tensors in host memory, on which
  // checks are made. `receipt`: of the message, if it has references.
  Reader(std::string_view body, internal::Tensors tensors,
         internal::ReferenceCodec* codec = nullptr, internal::Tensors came = {},
         std::shared_ptr<internal::Receipt> receipt = {})
      : rest_(body),
        tensors_(std::move(tensors)),
        came_(std::move(came)),
        codec_(codec),
        receipt_(std::move(receipt)) {}

  // These read what Writer's functions of the same names wrote.
  uint8_t byte();
  uint64_t word();    // 8 bytes
  uint64_t length();  // as Writer::length()
  // The number of elements that follow, each of at least one byte.
  size_t count();
  std::string_view text();
  at::Tensor tensor();
  std::string_view rest() const { return rest_; }  // the bytes that were not read yet
  // The message has been read: lets go of its receipt. Throws unless everything has been read.
  void end();

  internal::Tensors& tensors() { return tensors_; }           // those that came with the bytes
  internal::ReferenceCodec* codec() const { return codec_; }  // null where there is no agent
  // Null for a message without references.
  const std::shared_ptr<internal::Receipt>& receipt() const { return receipt_; }
  // Limits the depth of a type that contains itself (a struct with a vector of itself).
  struct Level {
    explicit Level(Reader& reader);
    ~Level() { --reader.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Reader& reader;
  };

 private:
  at::Tensor next_tensor();
  // The tensor that next_tensor() returned `back` calls ago, as it was received. Call it once per
  // tensor: it is not kept.
  at::Tensor as_it_came(size_t back, const at::Tensor& tensor);

  std::string_view rest_;
  internal::Tensors tensors_, came_;
  size_t next_ = 0;
  int depth_ = 0;
  internal::ReferenceCodec* codec_;
  std::shared_ptr<internal::Receipt> receipt_;
};

// Types in words: "(tensor, int) -> [float]"; equal words, equal bytes.
class LOCKSTEP_API TypeText {
 public:
  TypeText& operator+=(std::string_view words) {
    text_ += words;
    return *this;
  }
  // Begins to describe a struct; inside itself a struct is described by its name alone. Returns
  // false in that case.
  bool enter(const std::type_info& type);
  void leave() { open_.pop_back(); }
  const std::string& str() const { return text_; }  // the words so far

 private:
  std::string text_;
  std::vector<const std::type_info*> open_;
};
LOCKSTEP_API std::string type_name(const std::type_info& type);  // demangled

namespace internal {
// This thread's empty writer, for one message.
LOCKSTEP_API Writer& scratch_writer(ReferenceCodec* codec);
}  // namespace internal

template <typename T>
struct Codec;  // describe(TypeText&), write(Writer&, const T&), read(Reader&) -> T

// A type that can be an argument or a result: it has a Codec.
template <typename T>
concept Travels = requires(TypeText& text, Writer& writer, Reader& reader, const T& value) {
  Codec<T>::describe(text);
  Codec<T>::write(writer, value);
  { Codec<T>::read(reader) } -> std::convertible_to<T>;
};

// The result of functions that return void.
struct Nothing {};

namespace internal {

// Detects whether T has reflect(visit).
struct AnyVisitor {
  template <typename F>
  void operator()(std::string_view, F&) {}
};
template <typename T>
concept Reflects = std::is_class_v<T> && std::is_default_constructible_v<T> &&
                   requires(T& value, AnyVisitor visitor) { value.reflect(visitor); };

[[noreturn]] LOCKSTEP_API void does_not_fit(const char* type, int64_t value);

}  // namespace internal

template <>
struct Codec<Nothing> {
  static void describe(TypeText& text) { text += "nothing"; }
  static void write(Writer&, const Nothing&) {}
  static Nothing read(Reader&) { return {}; }
};

template <>
struct Codec<bool> {
  static void describe(TypeText& text) { text += "bool"; }
  static void write(Writer& writer, bool value) { writer.byte(value ? 1 : 0); }
  static bool read(Reader& reader) { return reader.byte() != 0; }
};

template <std::integral T>
  requires(!std::same_as<T, bool>)
struct Codec<T> {
  static void describe(TypeText& text) { text += "int"; }
  static void write(Writer& writer, T value) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        internal::does_not_fit("a signed integer of 64 bits", static_cast<int64_t>(value));
    writer.word(static_cast<uint64_t>(static_cast<int64_t>(value)));
  }
  static T read(Reader& reader) {
    const auto value = static_cast<int64_t>(reader.word());
    if (!std::in_range<T>(value)) internal::does_not_fit(typeid(T).name(), value);
    return static_cast<T>(value);
  }
};

template <std::floating_point T>
struct Codec<T> {
  static void describe(TypeText& text) { text += "float"; }
  static void write(Writer& writer, T given) {
    const auto value = static_cast<double>(given);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    writer.word(bits);
  }
  static T read(Reader& reader) {
    const uint64_t bits = reader.word();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<T>(value);
  }
};

template <typename T>
  requires std::is_enum_v<T>
struct Codec<T> {
  using Under = std::underlying_type_t<T>;
  static void describe(TypeText& text) { text += "int"; }
  static void write(Writer& writer, T value) {
    Codec<Under>::write(writer, static_cast<Under>(value));
  }
  static T read(Reader& reader) { return static_cast<T>(Codec<Under>::read(reader)); }
};

template <>
struct Codec<std::string> {
  static void describe(TypeText& text) { text += "string"; }
  static void write(Writer& writer, std::string_view value) { writer.text(value); }
  static std::string read(Reader& reader) { return std::string(reader.text()); }
};

template <>
struct Codec<at::Tensor> {
  static void describe(TypeText& text) { text += "tensor"; }
  static void write(Writer& writer, const at::Tensor& value) { writer.tensor(value); }
  static at::Tensor read(Reader& reader) { return reader.tensor(); }
};

template <Travels T>
struct Codec<std::vector<T>> {
  static void describe(TypeText& text) {
    text += "[";
    Codec<T>::describe(text);
    text += "]";
  }
  static void write(Writer& writer, const std::vector<T>& values) {
    writer.length(values.size());
    for (const auto& value : values) Codec<T>::write(writer, value);
  }
  static std::vector<T> read(Reader& reader) {
    const size_t count = reader.count();
    std::vector<T> values;
    values.reserve(count);
    for (size_t i = 0; i < count; ++i) values.push_back(Codec<T>::read(reader));
    return values;
  }
};

template <Travels T, size_t N>
struct Codec<std::array<T, N>> {
  static void describe(TypeText& text) {
    Codec<T>::describe(text);
    text += "[" + std::to_string(N) + "]";
  }
  static void write(Writer& writer, const std::array<T, N>& values) {
    for (const auto& value : values) Codec<T>::write(writer, value);
  }
  static std::array<T, N> read(Reader& reader) {
    std::array<T, N> values;
    for (auto& value : values) value = Codec<T>::read(reader);
    return values;
  }
};

template <Travels T>
struct Codec<std::optional<T>> {
  static void describe(TypeText& text) {
    Codec<T>::describe(text);
    text += "?";
  }
  static void write(Writer& writer, const std::optional<T>& value) {
    writer.byte(value ? 1 : 0);
    if (value) Codec<T>::write(writer, *value);
  }
  static std::optional<T> read(Reader& reader) {
    if (reader.byte() == 0) return std::nullopt;
    return Codec<T>::read(reader);
  }
};

namespace internal {
template <typename Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static void describe(TypeText& text) {
    text += "{";
    Codec<Key>::describe(text);
    text += ": ";
    Codec<Value>::describe(text);
    text += "}";
  }
  static void write(Writer& writer, const Map& map) {
    writer.length(map.size());
    for (const auto& [key, value] : map) {
      Codec<Key>::write(writer, key);
      Codec<Value>::write(writer, value);
    }
  }
  static Map read(Reader& reader) {
    const size_t count = reader.count();
    Map map;
    for (size_t i = 0; i < count; ++i) {
      auto key = Codec<Key>::read(reader);
      map.insert_or_assign(std::move(key), Codec<Value>::read(reader));
    }
    return map;
  }
};
}  // namespace internal
template <Travels Key, Travels Value>
struct Codec<std::map<Key, Value>> : internal::MapCodec<std::map<Key, Value>> {};
template <Travels Key, Travels Value>
struct Codec<std::unordered_map<Key, Value>> : internal::MapCodec<std::unordered_map<Key, Value>> {
};

template <Travels... T>
struct Codec<std::tuple<T...>> {
  static void describe(TypeText& text) {
    text += "(";
    bool first = true;
    ((text += first ? "" : ", ", first = false, Codec<T>::describe(text)), ...);
    text += ")";
  }
  static void write(Writer& writer, const std::tuple<T...>& values) {
    std::apply([&](const auto&... value) { (Codec<T>::write(writer, value), ...); }, values);
  }
  static std::tuple<T...> read(Reader& reader) {
    return std::tuple<T...>{Codec<T>::read(reader)...};  // braces: in order
  }
};
template <Travels A, Travels B>
struct Codec<std::pair<A, B>> {
  static void describe(TypeText& text) { Codec<std::tuple<A, B>>::describe(text); }
  static void write(Writer& writer, const std::pair<A, B>& value) {
    Codec<A>::write(writer, value.first);
    Codec<B>::write(writer, value.second);
  }
  static std::pair<A, B> read(Reader& reader) {
    auto first = Codec<A>::read(reader);
    return {std::move(first), Codec<B>::read(reader)};
  }
};

template <internal::Reflects T>
struct Codec<T> {
  static void describe(TypeText& text) {
    const std::string name = type_name(typeid(T));
    text += name;
    if (!text.enter(typeid(T))) return;
    text += "{";
    T value{};
    bool first = true;
    value.reflect([&]<typename F>(std::string_view field, F&) {
      text += first ? "" : ", ";
      first = false;
      text += field;
      text += ": ";
      Codec<F>::describe(text);
    });
    text += "}";
    text.leave();
  }
  // reflect() takes fields to read and to write alike; nothing is written here.
  static void write(Writer& writer, const T& value) {
    writer.byte(1);
    const_cast<T&>(value).reflect(
        [&]<typename F>(std::string_view, F& field) { Codec<F>::write(writer, field); });
  }
  static T read(Reader& reader) {
    const Reader::Level level(reader);
    reader.byte();
    T value{};
    value.reflect([&]<typename F>(std::string_view, F& field) { field = Codec<F>::read(reader); });
    return value;
  }
};

namespace internal {

// The type that travels for an argument of type A.
template <typename A>
struct Sent {
  using type = A;
};
template <>
struct Sent<const char*> {
  using type = std::string;
};
template <>
struct Sent<char*> {
  using type = std::string;
};
template <>
struct Sent<std::string_view> {
  using type = std::string;
};
template <typename A>
using SentFor = typename Sent<std::decay_t<A>>::type;

template <typename... A>
void write_all(Writer& writer, const A&... arguments) {
  try {
    (Codec<SentFor<A>>::write(writer, arguments), ...);
  } catch (...) {
    writer.clear(nullptr);  // this thread keeps it
    throw;
  }
}

}  // namespace internal

}  // namespace lockstep::inline v0::rpc
