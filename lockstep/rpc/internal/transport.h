// Transport: authenticated connections between named processes, for messages; it knows nothing of functions.
//
// A process listens on a Unix socket of its host (abstract, of a random name) and on TCP, and writes both into the store
// under its name with a random number, its incarnation; who calls it connects: over the Unix socket on the same host
// (host_identity()), else over TCP. A link belongs to who made it: requests go forth, responses back; the other direction
// makes a link of its own. Both ends prove the job's secret (wire/challenge.h) before anything else is read.
//
// Tensors of less than kReachFrom bytes, and all on links between hosts, follow the message in the stream: they are
// written straight from their storage (writev) and read straight into new ones. Larger ones, over a Unix socket and where
// the system allows it (process_vm_readv; hello.h says whose memory that is), are named by their address and read by the
// receiver; the sender's storage is kept until the receiver has said that it is done, or the link is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/message.h"
#include "lockstep/rpc/peer.h"
#include "lockstep/store/store.h"

namespace lockstep::rpc::internal {

inline constexpr int64_t kReachFrom = int64_t{256} << 10;

// Bounds of what waits in a process to be sent over one link, and of what a sender may make a receiver hold.
struct LinkLimits {
  size_t queued_bytes =
      size_t{256} << 20;  // of bodies and tensors in the queue, those named by address included
  size_t message_bytes = size_t{16} << 30;  // of one message's tensors
};

class Link {
 public:
  virtual ~Link() = default;

  // The other end; known from the beginning at the end that connected, after the challenge at the other.
  virtual const Peer& peer() const = 0;

  // When a message is written. kNow: by this thread, at once, as far as the socket takes it (what is sent while messages
  // are being handed out, by their thread: after them, together). kMine: the same, by a thread that calls
  // receive_until() next, so that the leader is not told to look for the answer. kSoon: with others that are sent
  // meanwhile, by the leader, which is woken for it once: for many calls in flight.
  enum class When : uint8_t { kNow, kMine, kSoon };
  // Copies `body` (two parts, one after the other) and keeps handles of the tensors; the tensors' contents must not
  // change until they have been sent (a response, or kTaken, implies it). Messages arrive in order. Never waits; any
  // thread. False: the link is lost, nothing was kept. Throws InvalidArgument: tensors not on the CPU, not dense, body
  // too long, tensors larger than LinkLimits::message_bytes. It does not look at the limit of what waits: callers ask queued_bytes() before.
  virtual bool send(const MessageHead& head, std::string_view body, std::string_view body_end,
                    const Tensors& tensors, When when) = 0;
  // Throws InvalidArgument where send() would, once the tensors are on the CPU: before they are copied there.
  virtual void check(size_t body_bytes, const Tensors& tensors) const = 0;
  // Bytes that wait to be sent or to be taken; beyond LinkLimits::queued_bytes callers should wait or refuse.
  virtual size_t queued_bytes() const = 0;
  // Waits until less than the limit waits. False: not before the deadline, or lost. Not on a reactor's leader.
  virtual bool wait_for_room(Deadline deadline) = 0;

  // Reads what is `pending` from the sender's memory into `tensors` of that message, and tells the sender. On a worker,
  // or whoever needs the tensors; throws PeerLost (the sender is gone, or no longer keeps them). Must be called once for
  // each pending message, or drop().
  virtual void fetch(Incoming& message) = 0;
  virtual void drop(uint64_t pending) noexcept = 0;

  // This thread receives what comes over the link, instead of the leader, until done() or the deadline: a caller that
  // waits for its response saves two changes of threads. True: done() was; false: the deadline, the link is lost, or, at
  // once, another thread is receiving; then wait by other means. done() is asked after each batch of messages, and at
  // least every 50 ms. Afterwards the leader receives again, at once where `calls` says that somebody waits.
  virtual bool receive_until(const std::function<bool()>& done, Deadline deadline) = 0;

  // Calls that wait for their answer over this link; kept by whoever makes them.
  std::atomic<int64_t> calls{0};

  // No message is received or sent any more. lost() is called, by this thread or the one that receives. Any thread.
  virtual void close(const std::string& why) = 0;
};

struct TransportOptions {
  std::string name;  // 1 to 200 bytes, printable; unique among the living
  std::string listen =
      "127.0.0.1";  // numeric address for TCP; beyond loopback only where a job has several hosts
  bool alone =
      false;  // as if every other process were on another host: TCP, and no reading of memory
  LinkLimits limits = {};
  size_t kept_bytes =
      size_t{512} << 20;  // of freed receive buffers kept for the next large tensors
};

class Transport {
 public:
  // Called on the leader or in receive_until(), one at a time for a link: must not wait, nor throw. `received` may keep
  // the link. `lost` once for each link that was made, after which no `received` comes; also in close().
  struct Handlers {
    std::function<void(const std::shared_ptr<Link>& link, Incoming& message)> received;
    std::function<void(const std::shared_ptr<Link>& link, const std::string& why)> lost;
  };

  // Listens and writes itself into the store (keys begin with "rpc/"); who connects waits for start(). Throws
  // InvalidArgument (the name is taken by one that lives: its listener answers), SystemError, StoreError. The reactor and
  // the store outlive it.
  Transport(Reactor& reactor, std::shared_ptr<Store> store, const Secret& secret,
            TransportOptions options, Deadline deadline);
  // Handlers are called from now on; once, before anything but self(). Throws SystemError.
  void start(Handlers handlers);
  // Takes its name out of the store if it is still its own, closes all.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const Peer& self() const;
  // The link to who has this name now; made when there is none, or when the last one was lost: then the store is asked
  // again, so that a process that came back under its name is found; waits for one that is not there (yet) until the
  // deadline. Concurrent callers share one attempt. `only`: this incarnation; PeerLost at once where it is gone, instead of
  // waiting for another. Throws Timeout ("'ps' has not come", "is gone since ..."), PeerLost, StoreError, and SystemError
  // at once for an address that cannot be reached later either. Waits: not on the leader.
  std::shared_ptr<Link> link_to(const std::string& name, Deadline deadline, uint64_t only = 0);
  // That link if it is there and alive; never waits.
  std::shared_ptr<Link> living_link_to(const std::string& name) const;

  // Whether a link with this very process is alive, whoever made it.
  bool has_link_with(uint64_t incarnation) const;

  // Connections refused (wrong secret, nonsense) since the start, for tests and the doctor.
  uint64_t refused() const;

  // Closes the listeners and all links; handlers have returned when it does.
  void close(const std::string& why);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::rpc::internal
