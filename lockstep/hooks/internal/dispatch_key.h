// The one dispatch key that Lockstep takes of libtorch's. Hooks and a thread's generator stand on it.
//
// libtorch calls an operation's kernel for the highest key that a tensor carries or that the thread
// has switched on. DeferredInit stands above autograd and autocast, has no kernel in libtorch, and
// is kept for libraries out of the tree: torchdistx builds modules without memory by it, which does
// not go together with tensors that have values, so the two cannot be in one process's way by
// accident. None of the keys meant for tests is used.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace lockstep::hooks::internal {

inline constexpr auto kKey = c10::DispatchKey::DeferredInit;

// Where kernels for the key are registered, under "aten"; all other operations pass the key by. Made
// when first asked for, in a few milliseconds that programs without hooks do not pay, and never
// taken back, since marked tensors may outlive anything.
torch::Library& kernels();

}  // namespace lockstep::hooks::internal
