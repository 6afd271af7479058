// Nodes of autograd's graph that are written here. libtorch holds a node by std::shared_ptr in 2.11, by
// c10::intrusive_ptr in 2.13; who makes one goes through make_node() and need not know.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::hooks {

// What holds a node in this libtorch: what an edge holds its function by.
using NodePointer = decltype(torch::autograd::Edge::function);

// A new T, which derives from torch::autograd::Node, made of `arguments`.
template <typename T, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    // libtorch's deleter, found by its argument's namespace since the other kind has none: it takes a long
    // graph apart without recursion.
    return NodePointer(new T(std::forward<Arguments>(arguments)...),
                       [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

}  // namespace lockstep::hooks
