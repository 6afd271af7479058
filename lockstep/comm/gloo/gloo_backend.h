// gloo: libtorch's ProcessGroupGloo, over TCP. For comparison with PyTorch, and where nothing
// better is there.
//
// gloo does not authenticate: any process that reaches its ports may join. On one host it is bound
// to the loopback address; it warns when it leaves that.
//
// gloo raises SIGPIPE when a peer dies. Where the program left that signal at its default, which
// ends the process, making the backend sets it to be ignored, as Python does.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  bool one_host = true;                                          // all ranks on this host
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of gloo's own waits
};

// Collective. The store must be new to this group (a PrefixStore) and is kept. Throws Timeout,
// StoreError, PeerLost.
std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<Store> store,
                                           const GlooOptions& options);

}  // namespace lockstep
