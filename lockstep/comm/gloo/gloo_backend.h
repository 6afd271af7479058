// gloo: libtorch's ProcessGroupGloo, over TCP. For comparison with PyTorch, and where nothing
// better is there.
//
// gloo does not authenticate: any process that reaches its ports may join. On one host it is bound
// to the loopback address; it warns when it leaves that.
//
// gloo does not tell of a peer that dies with half of a message under way. Requests of messages from 64 KiB on
// therefore wait in a thread of their own, and may be waited for in slices (Request::waits_again()) between which
// somebody looks after the peer; no longer than GlooOptions::timeout in all, which is gloo's.
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
