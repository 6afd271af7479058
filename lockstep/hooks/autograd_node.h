// Nodes of autograd's graph that are defined here. libtorch holds a node by std::shared_ptr in 2.11
// and by c10::intrusive_ptr in 2.13; make_node() hides the difference.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::inline v0::hooks {

// The pointer type for nodes in this libtorch, by which an edge holds its function.
using NodePointer = decltype(torch::autograd::Edge::function);

// Makes a T, which derives from torch::autograd::Node, from `arguments`.
template <typename T, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    // Uses libtorch's deleter, found by its argument's namespace since the other pointer type has
    // none: it destroys a long graph without recursion.
    return NodePointer(new T(std::forward<Arguments>(arguments)...),
                       [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

}  // namespace lockstep::inline v0::hooks
