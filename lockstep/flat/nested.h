// Tensors inside nested values: arguments and results of a forward(). They are found in vectors,
// arrays, optionals, pairs, tuples and maps of each other, and in a struct that names them:
//
//   struct Output {
//     at::Tensor logits, hidden;
//     auto tensors() { return std::tie(logits, hidden); }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::inline v0::flat {

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
  if constexpr (requires { value.tensors(); }) {
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

// The number of samples of a forward: the rows of the first tensor among its arguments; 0 without
// one.
inline int64_t rows_of() {
  return 0;
}
template <typename First, typename... Rest>
int64_t rows_of(const First& first, const Rest&... rest) {
  if constexpr (std::derived_from<First, at::Tensor>) {
    if (first.defined() && first.dim() > 0) return first.size(0);
  }
  return rows_of(rest...);
}

}  // namespace lockstep::inline v0::flat
