// Backend: the interface that an engine implements. Users see Communicator, not this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/capabilities.h"
#include "lockstep/comm/elsewhere.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/types.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

// The end of an operation on a device, whose host was let go before. Outlives its backend; from any
// thread, one at a time.
class Tail {
 public:
  virtual ~Tail() = default;
  // True once the device is through with the operation's memory. Never blocks.
  virtual bool over() noexcept = 0;
};

// One operation under way. Destroying it does not cancel the operation; the memory that the call
// named must stay valid until poll() returned true, wait() returned, or the backend is gone.
class Request {
 public:
  virtual ~Request() = default;
  // Makes what progress is possible without blocking, for this and every earlier operation of the
  // backend. True when over. Throws what the operation failed with.
  virtual bool poll() = 0;
  // Blocks until over. Throws Timeout, PeerLost, Mismatch.
  virtual void wait(Deadline deadline) = 0;
  // Of a message: whether a wait() that times out leaves it as it was, so that it may be waited for again.
  virtual bool waits_again() const { return false; }
  // In place of wait(), where capabilities() say `stream_ordered`: blocks only until the device has
  // the operation, and has whatever this thread's current stream is given from now on come after
  // it. poll() goes on to say when it is over and what it failed with. Null: it is over. Throws as
  // wait().
  virtual std::shared_ptr<Tail> order(Deadline deadline) {
    wait(deadline);
    return nullptr;
  }
};

// Memory that every rank of the group has mapped: this rank's own, or one for all.
struct SymmetricMemory {
  std::byte* data = nullptr;    // null: the engine has none, or needs none
  std::shared_ptr<void> owner;  // gives it back; may outlive the backend, may die on any thread
  std::function<void()> warm;   // to be called once all ranks have theirs: saves the first faults
};

// An engine that moves bytes among a fixed group of ranks. One thread at a time. Every rank must
// start the same collectives in the same order; sends and receives match by peer, tag and order,
// apart from the collectives.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Capabilities& capabilities() const = 0;

  // Where capabilities() say `stream_ordered`: what this thread's current stream has been given so
  // far, for Call::after.
  virtual std::shared_ptr<void> mark() { return nullptr; }

  // Whether its operations may be captured in a graph of the device (device/graph.h), all but
  // messages and barriers. A request of a captured one is over once the device has it, and its
  // end is neither asked for nor waited for.
  virtual bool captures() const { return false; }
  // Where it captures: for the Call::after of a call that is a barrier for the ranks' hosts and, for their
  // devices, the replay of a graph with captured operations. It is started before the replay, and is
  // over when the device has done what its stream has been given up to replayed(). Null: ranks
  // need not meet.
  virtual std::shared_ptr<void> mark_replay() { return nullptr; }
  // The graph has been given to this thread's current stream. Before that, order() only waits for
  // the other ranks.
  virtual void replayed(const std::shared_ptr<void>& mark) { (void)mark; }

  // Starts an operation that capabilities() calls native; never blocks. Arguments were checked by
  // Communicator.
  virtual std::unique_ptr<Request> start(const Call& call) = 0;

  // Called right before run() with the same call, but for its record, which is made in between: an
  // engine that can lets the data go now, so that what is written down of the call costs no time
  // while the data travels. Does not wait, and does not throw: what is wrong, run() says.
  virtual void show(const Call& call) { (void)call; }

  // The blocking form; an engine that has a shorter way overrides it: most small calls are over
  // before it is worth asking for the time. Throws as Request::wait().
  virtual void run(const Call& call, Deadline::Duration timeout) {
    start(call)->wait(Deadline::after(timeout));
  }

  // `bytes` (> 0) of zeroed memory, of the same size on every rank, which all call this in the same
  // order; what throws (SystemError) counts as called. Does not communicate.
  virtual SymmetricMemory allocate_symmetric(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Where capabilities() say `shared_memory`: `bytes` (> 0) of zeroed memory that is one for all ranks
  // of this host; otherwise as allocate_symmetric().
  virtual SymmetricMemory allocate_shared(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Makes progress on whatever is pending, without blocking. Does not throw for a failed operation:
  // its request does.
  virtual void progress() = 0;

  // What waits here are to move besides. Outlives the engine; set before its first call, and not
  // called from progress() or poll(). An engine whose waits are cut into short ones by another
  // (side_channel/) leaves it.
  virtual void set_elsewhere(Elsewhere* elsewhere) { (void)elsewhere; }

  // True if the engine knows that the rank's process is gone or that its end was destroyed.
  // Callable in any state; does not block.
  virtual bool lost(int /*rank*/) const { return false; }

  // What a receive of `tag` from rank `src` would find now, after the receives already posted.
  // Never blocks. Throws PeerLost if it would find nothing and the rank is dead. Where
  // capabilities() say `probe`.
  virtual Probe probe(int /*src*/, int /*tag*/) { return Probe::kNothing; }

  // Tells the peers, as far as the engine can, that this rank gives up: their waits end with what `why` says
  // instead of a time-out. Callable in any state; does not block, does not throw.
  virtual void abort(const Breakage& why) noexcept = 0;

  // The same from any thread while another may be inside: what waits there, or is about to, throws
  // PeerLost soon. abort() follows once nobody is inside. An engine that need not be asked, because
  // its waits are cut into short ones by another (side_channel/), leaves it.
  virtual void interrupt(const Breakage& why) noexcept { (void)why; }

  // Leaves the group, as the destructor does otherwise; nothing but that may follow. False if peers
  // may touch memory of this rank even now, that of calls which were under way and the backend's
  // own: then neither may be given back, and the backend must not be destroyed. Waits a short,
  // bounded time for them to be through.
  virtual bool close() noexcept { return true; }
};

}  // namespace lockstep
