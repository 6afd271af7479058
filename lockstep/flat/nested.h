// Tensors inside nested values: arguments and results of a forward(). They are found in vectors,
// arrays, optionals, pairs, tuples and maps of each other, and in a struct that names them:
//
//   struct Output {
//     at::Tensor logits, hidden;
//     auto tensors() { return std::tie(logits, hidden); }
//   };
//
// In a value of TorchScript (c10::IValue) they are found in its lists, tuples and dictionaries.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace c10 {
struct IValue;
}

namespace lockstep::inline v0::flat {

// for_each_tensor() of a value of TorchScript: a list, tuple or dictionary with a replaced tensor
// is replaced by another one. Other objects' tensors are not found.
LOCKSTEP_API void for_each_tensor_of(c10::IValue& value, const std::function<void(at::Tensor&)>& f);
// Whether the value is or holds such an object.
LOCKSTEP_API bool holds_object(const c10::IValue& value);
// The rows of the first tensor in these values; -1 without one.
LOCKSTEP_API int64_t rows_of_first(const c10::IValue* values, size_t count);

template <typename F>
void for_each_tensor(at::Tensor& tensor, const F& f) {
  f(tensor);
}

// Whether T is a std::tuple.
template <typename T>
inline constexpr bool is_tuple = false;
template <typename... Ts>
inline constexpr bool is_tuple<std::tuple<Ts...>> = true;

// A struct that names its tensors; other types have none.
template <typename T, typename F>
void for_each_tensor(T& value, const F& f);

template <typename T, typename F>
void for_each_tensor(std::vector<T>& values, const F& f);
template <typename T, size_t N, typename F>
void for_each_tensor(std::array<T, N>& values, const F& f);
template <typename T, typename F>
void for_each_tensor(std::optional<T>& value, const F& f);
template <typename A, typename B, typename F>
void for_each_tensor(std::pair<A, B>& values, const F& f);
template <typename... Ts, typename F>
void for_each_tensor(std::tuple<Ts...>& values, const F& f);
template <typename K, typename V, typename F>
void for_each_tensor(std::map<K, V>& values, const F& f);
// In the container's own order; its copies have the same.
template <typename K, typename V, typename F>
void for_each_tensor(std::unordered_map<K, V>& values, const F& f);

// Calls f(tensor) for each tensor in `values`, in order; f may replace it.
template <typename T, typename F>
void for_each_tensor(T& value, const F& f) {
  if constexpr (std::same_as<T, c10::IValue>) {
    for_each_tensor_of(value, f);
  } else if constexpr (requires { value.tensors(); }) {
    auto named = value.tensors();
    if constexpr (is_tuple<decltype(named)>) for_each_tensor(named, f);
  }
}
template <typename T, typename F>
void for_each_tensor(std::vector<T>& values, const F& f) {
  for (auto&& value : values) for_each_tensor(value, f);
}
template <typename T, size_t N, typename F>
void for_each_tensor(std::array<T, N>& values, const F& f) {
  for (T& value : values) for_each_tensor(value, f);
}
template <typename T, typename F>
void for_each_tensor(std::optional<T>& value, const F& f) {
  if (value) for_each_tensor(*value, f);
}
template <typename A, typename B, typename F>
void for_each_tensor(std::pair<A, B>& values, const F& f) {
  for_each_tensor(values.first, f);
  for_each_tensor(values.second, f);
}
template <typename... Ts, typename F>
void for_each_tensor(std::tuple<Ts...>& values, const F& f) {
  std::apply([&f](auto&... value) { (for_each_tensor(value, f), ...); }, values);
}
template <typename K, typename V, typename F>
void for_each_tensor(std::map<K, V>& values, const F& f) {
  for (auto& [key, value] : values) for_each_tensor(value, f);
}
template <typename K, typename V, typename F>
void for_each_tensor(std::unordered_map<K, V>& values, const F& f) {
  for (auto& [key, value] : values) for_each_tensor(value, f);
}

// The tensors inside a value, in order.
template <typename T>
std::vector<at::Tensor> tensors_of(T& values) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(values, [&tensors](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Replaces the tensors of `values` by `tensors`, of which there are as many.
template <typename T>
void set_tensors(T& values, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for_each_tensor(values, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

// The module's forward(). TorchScript's takes a vector of values; other arguments are put in one.
template <typename Module, typename... Args, typename Value = c10::IValue>
auto forward_of(Module& module, Args&&... args) {
  constexpr bool fits = requires { module.forward(std::forward<Args>(args)...); };
  if constexpr (!fits && requires { module.get_methods(); }) {
    std::vector<Value> values;
    (values.emplace_back(std::forward<Args>(args)), ...);
    return module.forward(std::move(values));
  } else {
    return module.forward(std::forward<Args>(args)...);
  }
}

// The number of samples of a forward: the rows of the first tensor among its arguments, values of
// TorchScript and vectors of them included; 0 without one.
inline int64_t rows_of() {
  return 0;
}
template <typename First, typename... Rest>
int64_t rows_of(const First& first, const Rest&... rest) {
  if constexpr (std::derived_from<First, at::Tensor>) {
    if (first.defined() && first.dim() > 0) return first.size(0);
  } else if constexpr (std::same_as<First, c10::IValue>) {
    if (const int64_t rows = rows_of_first(&first, 1); rows >= 0) return rows;
  } else if constexpr (std::same_as<First, std::vector<c10::IValue>>) {
    if (const int64_t rows = rows_of_first(first.data(), first.size()); rows >= 0) return rows;
  }
  return rows_of(rest...);
}

}  // namespace lockstep::inline v0::flat
