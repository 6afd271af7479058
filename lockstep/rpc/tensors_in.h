// The tensors in a value of a type that can be sent (codec.h); none in another type. Not for
// programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/rpc/codec.h"

namespace lockstep::inline v0::rpc::internal {

template <typename T>
void add_tensors(const T& value, std::vector<at::Tensor>& tensors) {
  if constexpr (std::same_as<T, at::Tensor>) {
    if (value.defined()) tensors.push_back(value);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (const auto& [key, one] : value) add_tensors(one, tensors);
  } else if constexpr (requires { value.has_value(); }) {
    if constexpr (requires { *value; })
      if (value.has_value()) add_tensors(*value, tensors);
  } else if constexpr (std::ranges::contiguous_range<const T>) {
    if constexpr (std::is_class_v<std::ranges::range_value_t<const T>>)
      for (const auto& one : value) add_tensors(one, tensors);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... one) { (add_tensors(one, tensors), ...); }, value);
  } else if constexpr (Reflects<T>) {
    const_cast<T&>(value).reflect(
        [&]<typename F>(std::string_view, F& field) { add_tensors(field, tensors); });
  }
}

template <typename T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> tensors;
  add_tensors(value, tensors);
  return tensors;
}

}  // namespace lockstep::inline v0::rpc::internal
