// gloo: libtorch's ProcessGroupGloo, over TCP. It serves comparison with PyTorch, and machines
// where no better engine works.
//
// gloo does not authenticate: any process that reaches its ports may join. On one host it is bound
// to the loopback address; it warns when it leaves that.
//
// gloo does not report a peer that dies in the middle of a message. Requests for messages of 64 KiB
// and more therefore wait in a thread of their own. Callers may wait for them in slices
// (Request::waits_again()) and check the peer in between, for GlooOptions::timeout in all, which is
// gloo's.
//
// gloo raises SIGPIPE when a peer dies. Where the program left that signal at its default, which
// ends the process, making the backend sets it to be ignored, as Python does.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  bool one_host = true;                                          // all ranks are on this host
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of gloo's own waits
};

// The store must be new to this group (a PrefixStore) and is kept.
// Collective: all ranks call it.
// Throws: Timeout, StoreError, PeerLost.
std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<Store> store,
                                           const GlooOptions& options);

}  // namespace lockstep::inline v0
