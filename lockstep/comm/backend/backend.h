// Backend: the interface that an engine implements. Users see Communicator instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/backend/capabilities.h"
#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/backend/sibling_progress.h"
#include "lockstep/comm/backend/types.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0 {

// The end of a device's operation that the host has stopped waiting for. It outlives its backend
// and may be used from any thread, by one thread at a time.
class Tail {
 public:
  virtual ~Tail() = default;
  // True once the device no longer uses the operation's memory. Never blocks.
  virtual bool over() noexcept = 0;
};

// One pending operation. Destroying the request does not cancel the operation. The memory that the
// call named must stay valid until poll() has returned true, wait() has returned, or the backend is
// gone.
class Request {
 public:
  virtual ~Request() = default;
  // Makes what progress is possible without blocking, for this and every earlier operation of the
  // backend. Returns true when this operation is complete.
  // Throws: the error with which it failed.
  virtual bool poll() = 0;
  // Blocks until the operation is complete.
  // Throws: Timeout, PeerLost, Mismatch.
  virtual void wait(Deadline deadline) = 0;
  // For messages: whether a wait() that times out leaves the message as it was, so that wait() may
  // be called again.
  virtual bool waits_again() const { return false; }
  // Replaces wait() where capabilities() say `stream_ordered`. It blocks only until the device has
  // been given the operation, and orders the later work of this thread's current stream after it.
  // poll() still reports completion and failure. A null result means that the operation is
  // complete.
  // Throws: as wait().
  virtual std::shared_ptr<Tail> order(Deadline deadline) {
    wait(deadline);
    return nullptr;
  }
};

// Memory that every rank of the group has mapped: either this rank's own block or one block for
// all.
struct SymmetricMemory {
  std::byte* data = nullptr;    // null: the engine has none, or needs none
  std::shared_ptr<void> owner;  // frees it; may outlive the backend and die on any thread
  std::function<void()> warm;   // called once all ranks have theirs; saves the first page faults
};

// The order of a device's work. An engine has it where its operations are given to a device, whose
// streams decide what comes after what.
// Thread-safety: as Backend.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;

  // A mark behind the work that this thread's current stream has been given so far, for
  // Call::after. Null: the engine's operations are on that stream themselves.
  virtual std::shared_ptr<void> mark() = 0;

  // Whether the engine's operations, except messages and barriers, may be captured in a graph of
  // the device (device/graph.h). A captured operation's request is complete once the device has
  // been given the operation; its end is neither queried nor waited for.
  virtual bool captures() const { return false; }
  // For engines that capture: a mark for the Call::after of a call that is a barrier for the ranks'
  // hosts and, for their devices, the replay of a graph with captured operations. That call is
  // started before the replay. It is complete when the device has done the work that its stream was
  // given up to replayed(). Null: ranks need not synchronise.
  virtual std::shared_ptr<void> mark_replay() { return nullptr; }
  // Says that the graph has been given to this thread's current stream. Until then order() only
  // waits for the other ranks.
  virtual void replayed(const std::shared_ptr<void>& mark) { (void)mark; }
};

// An engine that moves bytes among a fixed group of ranks. Every rank must start the same
// collectives in the same order. Sends and receives are matched by peer, tag and order,
// independently of the collectives.
// Thread-safety: one thread at a time, except where a function says otherwise.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Capabilities& capabilities() const = 0;

  // Null unless capabilities() say `stream_ordered`. Owned by the engine.
  virtual DeviceOrder* device_order() { return nullptr; }

  // Why this thread may not call the engine now, as the end of an error's line ("this thread may
  // not call MPI: ..."); null where it may. Communicator asks before it numbers a call or begins a
  // wait, so that a refused one leaves the group in step: the other ranks still wait for it.
  // Callable from any thread, in any state. Never blocks.
  virtual const char* refuses_caller() const noexcept { return nullptr; }

  // Starts an operation that capabilities() call native. Never blocks. Communicator has checked the
  // arguments.
  virtual std::unique_ptr<Request> start(const Call& call) = 0;

  // Called right before run() with the same call, before its record is made. An engine may send the
  // data now, so that writing the record costs no time while the data travels. It neither waits nor
  // throws; run() reports errors.
  virtual void show(const Call& call) { (void)call; }

  // The blocking form. An engine that has a shorter path overrides it: most small calls are
  // complete before reading the clock would pay off.
  // Throws: as Request::wait().
  virtual void run(const Call& call, Deadline::Duration timeout) {
    start(call)->wait(Deadline::after(timeout));
  }

  // Allocates `bytes` (> 0) of zeroed memory. All ranks call it in the same order with the same
  // size; a call that throws SystemError counts as made. It does not communicate.
  virtual SymmetricMemory allocate_symmetric(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Allocates `bytes` (> 0) of zeroed memory. Where capabilities() say `shared_memory`, all ranks
  // of this host get the same memory; otherwise this is allocate_symmetric().
  virtual SymmetricMemory allocate_shared(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Makes progress on everything pending, without blocking. It does not throw when an operation
  // fails; that operation's request does.
  virtual void progress() = 0;

  // Other communicators to progress while this one waits. The object outlives the engine, is set
  // before its first call, and is not called from progress() or poll(). An engine ignores it if
  // another engine cuts its waits into short ones (side_channel/).
  virtual void set_siblings(SiblingProgress* siblings) { (void)siblings; }

  // True if the engine knows that the rank's process is gone or that its end was destroyed.
  // Callable in any state. Never blocks.
  virtual bool lost(int /*rank*/) const { return false; }

  // Returns what a receive of `tag` from rank `src` would find now, behind the receives already
  // posted. Never blocks.
  // Requires: capabilities() say `probe`.
  // Throws: PeerLost if there is no message and the rank is dead.
  virtual Probe probe(int /*src*/, int /*tag*/) { return Probe::kNothing; }

  // Tells the peers, as far as the engine can, that this rank gives up: their waits end with the
  // reason in `why` instead of a time-out. Callable in any state. Never blocks or throws.
  virtual void abort(const Breakage& why) noexcept = 0;

  // The same from any thread, while another thread may be inside: a wait that is pending or about
  // to begin throws PeerLost soon. abort() follows once no thread is inside. An engine ignores this
  // if another engine cuts its waits into short ones (side_channel/).
  virtual void interrupt(const Breakage& why) noexcept { (void)why; }

  // Leaves the group, as the destructor does otherwise; only the destructor may follow. Waits a
  // short, bounded time for peers that still touch this rank's memory. Returns false if they may
  // touch it even now: then neither the memory of pending calls nor the backend's own may be freed,
  // and the backend must not be destroyed.
  virtual bool close() noexcept { return true; }
};

}  // namespace lockstep::inline v0
