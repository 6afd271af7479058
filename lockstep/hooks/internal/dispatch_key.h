// The dispatch key of libtorch's that Lockstep uses. Hooks and a thread's generator rely on it.
//
// libtorch calls an operation's kernel for the highest key that a tensor carries or that the thread
// has enabled. DeferredInit is above autograd and autocast, has no kernel in libtorch, and is
// reserved for libraries out of the tree: torchdistx uses it to build modules without memory, which
// cannot be combined with tensors that have values, so the two cannot conflict by accident. None of
// the keys meant for tests is used.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace lockstep::inline v0::hooks::internal {

inline constexpr auto kKey = c10::DispatchKey::DeferredInit;

// The library in which kernels for the key are registered, under "aten"; all other operations
// ignore the key. It is made at the first use, in a few milliseconds that programs without hooks do
// not pay, and never destroyed, since marked tensors may outlive anything.
torch::Library& kernels();

// While any lives on a thread, its operations call the kernels for the key, whatever tensors they
// are given. They may end in any order.
class KeyOnThread {
 public:
  KeyOnThread();
  ~KeyOnThread();
  KeyOnThread(const KeyOnThread&) = delete;
  KeyOnThread& operator=(const KeyOnThread&) = delete;

  static bool is_here();  // whether one lives on this thread
};

}  // namespace lockstep::inline v0::hooks::internal
