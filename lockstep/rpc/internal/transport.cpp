#include "lockstep/rpc/internal/transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/internal/directory.h"
#include "lockstep/rpc/internal/hello.h"
#include "lockstep/rpc/internal/stream_link.h"
#include "lockstep/trace/trace_file.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr size_t kLocalDoor = 0, kTcpDoor = 1;
constexpr size_t kMaxUnauthenticated = 256;
constexpr auto kIntroductionTime = std::chrono::seconds(5);
// The first interval of lookups in the store.
constexpr auto kLookedUpAgain = std::chrono::milliseconds(20);
constexpr auto kLookedUpAtLeast = std::chrono::milliseconds(100);
// Consecutive refusals of the secret: a flood of unauthenticated peers displaces some.
constexpr int kRefusalsBelieved = 3;

}  // namespace

struct Transport::State : std::enable_shared_from_this<Transport::State> {
  State(Reactor& given, std::shared_ptr<Store> its_store, const Secret& its_secret,
        TransportOptions its_options)
      : reactor(given),
        store(std::move(its_store)),
        secret(its_secret),
        options(std::move(its_options)) {}

  void listen();
  void start(LinkHandlers handlers);
  void accept();
  std::shared_ptr<StreamLink> make_link(UniqueFd fd, Introduction introduction, bool local,
                                        const std::string& ready, const std::string& name);
  std::shared_ptr<StreamLink> attempt(const std::string& name, Deadline deadline, uint64_t only);
  void write_what_waits();
  void close(const std::string& why);

  Reactor& reactor;
  const std::shared_ptr<Store> store;
  const Secret secret;
  const TransportOptions options;
  Hello self;
  Entry entry;
  std::optional<wire::Listener> listener;  // by the Unix socket and by TCP
  UniqueFd wake;
  std::shared_ptr<LinkContext> context;
  std::atomic<uint64_t> refused{0};

  struct Known {
    std::shared_ptr<StreamLink> link;
    bool attempting = false;
    uint64_t lost_incarnation = 0;  // of the last link
  };
  mutable Mutex mutex;
  ConditionVariable changed;
  bool closed LOCKSTEP_GUARDED_BY(mutex) = false;
  std::unordered_map<std::string, Known> known LOCKSTEP_GUARDED_BY(mutex);
  std::set<std::shared_ptr<StreamLink>> links LOCKSTEP_GUARDED_BY(mutex);  // in both directions
  std::set<int> tried LOCKSTEP_GUARDED_BY(mutex);                          // by attempt()

  // A socket on which this process authenticates itself: close() ends that.
  class Trying {
   public:
    Trying(State& state, int fd) : state_(state), fd_(fd) {
      const MutexLock lock(state_.mutex);
      state_.tried.insert(fd_);
      if (state_.closed) ::shutdown(fd_, SHUT_RDWR);
    }
    ~Trying() {
      const MutexLock lock(state_.mutex);
      state_.tried.erase(fd_);
    }
    Trying(const Trying&) = delete;
    Trying& operator=(const Trying&) = delete;

   private:
    State& state_;
    const int fd_;
  };

  Mutex write_mutex;
  std::vector<std::shared_ptr<StreamLink>> to_write LOCKSTEP_GUARDED_BY(write_mutex);
};

// ---- coming up ----

void Transport::State::listen() {
  std::vector<UniqueFd> doors(2);
  doors[kLocalDoor] = listen_local(entry.local);
  doors[kTcpDoor] = listen_tcp({options.listen, 0});
  entry.tcp = addresses_of(options.listen, local_address(doors[kTcpDoor].get()).port);
  listener.emplace(std::move(doors), secret,
                   wire::Listener::Service{
                       .where = "rpc",
                       .purpose = std::string(kPurpose),
                       .most = kMaxUnauthenticated,
                       .time = kIntroductionTime,
                       .greets = [this](int fd) { return std::make_unique<Newcomer>(fd, self); }});
  wake = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) throw system_error("eventfd", errno);
}

void Transport::State::start(LinkHandlers handlers) {
  const std::weak_ptr<State> weak = weak_from_this();
  context = std::make_shared<LinkContext>(LinkContext{
      .reactor = reactor,
      .limits = options.limits,
      .host_identity = entry.host_identity,
      .memory = ReceiveMemory::make(options.kept_bytes),
      .handlers = std::move(handlers),
      .write_soon =
          [weak](std::shared_ptr<StreamLink> link) {
            const auto state = weak.lock();
            if (!state) return;
            bool first = false;
            {
              MutexLock lock(state->write_mutex);
              first = state->to_write.empty();
              state->to_write.push_back(std::move(link));
            }
            if (!first) return;
            const uint64_t one = 1;
            [[maybe_unused]] const auto written = ::write(state->wake.get(), &one, sizeof one);
          },
      .gone =
          [weak](const std::shared_ptr<StreamLink>& link) {
            const auto state = weak.lock();
            if (!state) return;
            MutexLock lock(state->mutex);
            state->links.erase(link);
            const auto found = state->known.find(link->peer().name);
            if (found == state->known.end() || found->second.link != link) return;
            found->second.link = nullptr;
            found->second.lost_incarnation = link->peer().incarnation;
          },
      .refused =
          [weak](const std::string& what) {
            const auto state = weak.lock();
            const uint64_t count = state ? ++state->refused : 0;
            if (wire::worth_a_line(count))
              log_warning("rpc: a connection was refused: " + what + " (number " +
                          std::to_string(count) + ")");
          }});
  reactor.watch(wake.get(), EPOLLIN, [weak](uint32_t) {
    if (const auto state = weak.lock()) state->write_what_waits();
  });
  reactor.watch(listener->fd(), EPOLLIN, [weak](uint32_t) {
    if (const auto state = weak.lock()) state->accept();
  });
}

void Transport::State::write_what_waits() {
  std::vector<std::shared_ptr<StreamLink>> links;
  {
    MutexLock lock(write_mutex);
    links.swap(to_write);
  }
  for (const auto& link : links) {
    link->written_soon = false;
    link->flush();
  }
}

// ---- who connects ----

void Transport::State::accept() {
  {
    const MutexLock lock(mutex);
    if (closed) return;
  }
  while (auto connection = listener->next()) {
    const bool local = connection->door == kLocalDoor;
    if (!local) prepare_tcp(connection->fd.get());
    // Only here the other end learns that they have met: nothing closes this connection before both
    // sides know it.
    Introduction& introduction = static_cast<Newcomer&>(*connection->greeting).introduction();
    const std::string ready = ready_frame({.reads = introduction.this_end_reads});
    make_link(std::move(connection->fd), std::move(introduction), local, ready, "");
  }
  reactor.arm(listener->fd(), EPOLLIN);  // it is edge triggered there, and there may be more
}

// `name`: the peer, for a link that this end has made; "" if the other end has.
std::shared_ptr<StreamLink> Transport::State::make_link(UniqueFd fd, Introduction introduction,
                                                        bool local, const std::string& ready,
                                                        const std::string& name) {
  if (local) {
    const int room = 1 << 20;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  }
  auto link = std::make_shared<StreamLink>(context, std::move(fd), std::move(introduction), ready);
  {
    MutexLock lock(mutex);
    if (closed) return nullptr;
    links.insert(link);
    if (!name.empty()) known[name].link = link;
  }
  link->start();
  return link;
}

// ---- who is called ----

std::shared_ptr<StreamLink> Transport::State::attempt(const std::string& name, Deadline deadline,
                                                      uint64_t only) {
  auto pause = kLookedUpAgain;
  uint64_t lost_incarnation = 0;
  {
    MutexLock lock(mutex);
    lost_incarnation = known[name].lost_incarnation;
  }
  std::optional<Entry> gone;  // the process that was there and does not answer
  bool silent = false;
  std::string error;   // of connecting
  bool asked = false;  // the store has answered
  int refusals = 0;    // of this process's secret
  while (true) {
    std::string text;
    try {
      text = look_up(*store, name, deadline);
      asked = true;
    } catch (const Timeout&) {
      if (!asked) throw;  // otherwise it is the last moment: the code below says why
    }
    const auto found = Entry::decode(text);
    if (found && (!gone || gone->peer.incarnation != found->peer.incarnation || silent)) {
      Attempt attempt;
      try {
        attempt = try_connect(*found, entry.host_identity, deadline);
      } catch (const SystemError& none) {
        if (!may_connect_later({}, none.errnum())) throw;
        attempt.silent = true;  // until there are descriptors again
        attempt.error = none.what();
      }
      if (attempt.hopeless) throw *attempt.hopeless;
      gone = found;
      silent = attempt.silent;
      error = attempt.error.empty() ? "" : " (" + attempt.error + ")";
      if (attempt.fd) {
        const Trying trying(*this, attempt.fd.get());
        try {
          prove(attempt.fd.get(), secret, deadline);
          Introduction introduction = introduce(attempt.fd.get(), self, deadline);
          // The port may now belong to another process of the job.
          if (introduction.other.peer.name == name &&
              introduction.other.peer.incarnation == found->peer.incarnation) {
            return make_link(std::move(attempt.fd), std::move(introduction), attempt.local, "",
                             name);
          }
        } catch (const PeerLost&) {
          // It left in the middle, and may come back.
          silent = !process_is_gone(found->peer.pid) || found->host_identity != entry.host_identity;
        } catch (const Timeout&) {
          silent = true;
        } catch (const StoreError&) {
          // Alternatively it had to make room for others before it had read the proof.
          if (++refusals == kRefusalsBelieved) throw;
          silent = true;
        } catch (const BadFrame& error) {
          throw StoreError("rpc: who answers for '" + name + "': " + error.what());
        }
      }
    }
    {
      MutexLock lock(mutex);
      if (closed) return nullptr;
    }
    if (only != 0 && (!found || found->peer.incarnation != only || !silent))
      throw PeerLost("rpc: '" + name + "' is gone", -1);
    if (deadline.expired()) {
      const std::string within = " within " + std::to_string(deadline.timeout_seconds()) + " s";
      if (gone && silent)
        throw Timeout("rpc: " + gone->peer.str() + " did not answer" + within + error);
      if (gone)
        throw Timeout("rpc: " + gone->peer.str() + " is gone and has not come back" + within +
                      error);
      throw Timeout("rpc: '" + name + "' has not come" + within +
                    (lost_incarnation ? ", since it ended" : "") +
                    "; is its process running, and is this its name?");
    }
    std::this_thread::sleep_for(std::min<Deadline::Duration>(pause, deadline.remaining()));
    pause = std::min(pause * 2, kLookedUpAtLeast);
  }
}

// ---- the end ----

void Transport::State::close(const std::string& why) {
  std::set<std::shared_ptr<StreamLink>> all;
  {
    MutexLock lock(mutex);
    if (closed) return;
    closed = true;
    all = links;
    for (const int fd : tried) ::shutdown(fd, SHUT_RDWR);
    changed.notify_all();
  }
  for (const int fd : {listener->fd(), wake.get()}) reactor.forget(fd);
  for (const auto& link : all) link->close(why);
  for (const auto& link : all) link->wait_until_quiet();
  {
    MutexLock lock(mutex);
    refused += listener->refused();
    listener.reset();
  }
  give_up_name(*store, entry);
}

Transport::Transport(Reactor& reactor, std::shared_ptr<Store> store, const Secret& secret,
                     TransportOptions options, Deadline deadline) {
  check_name(options.name);
  state_ = std::make_shared<State>(reactor, std::move(store), secret, std::move(options));
  State& state = *state_;
  Hello& self = state.self;
  self.peer = {state.options.name, random_word() | 1, ::getpid(), trace::host_name()};
  self.host_identity = host_identity();
  if (state.options.alone) self.host_identity += "/" + std::to_string(self.peer.incarnation);
  state.entry.peer = self.peer;
  state.entry.host_identity = self.host_identity;
  state.listen();
  claim_name(*state.store, state.entry, secret, deadline);
}

void Transport::start(LinkHandlers handlers) {
  state_->start(std::move(handlers));
}

Transport::~Transport() {
  if (state_) state_->close("its agent has ended");
}

const Peer& Transport::self() const {
  return state_->self.peer;
}

std::shared_ptr<Link> Transport::link_to(const std::string& name, Deadline deadline,
                                         uint64_t only) {
  check_name(name);
  State& state = *state_;
  const auto ended = [] { return PeerLost("rpc: this process's end was closed", -1); };
  MutexLock lock(state.mutex);
  while (true) {
    if (state.closed) throw ended();
    State::Known& known = state.known[name];
    if (known.link && !known.link->lost()) return known.link;
    if (known.attempting) {
      if (!state.changed.wait_until(lock, deadline.time()) && deadline.expired())
        throw Timeout("rpc: '" + name + "' has not answered within " +
                      std::to_string(deadline.timeout_seconds()) + " s");
      continue;
    }
    known.attempting = true;
    lock.unlock();
    std::shared_ptr<Link> link;
    std::exception_ptr error;
    try {
      link = state.attempt(name, deadline, only);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    state.known[name].attempting = false;
    state.changed.notify_all();
    if (error) {
      lock.unlock();
      std::rethrow_exception(error);
    }
    if (!link) throw ended();
    return link;
  }
}

std::shared_ptr<Link> Transport::living_link_to(const std::string& name) const {
  MutexLock lock(state_->mutex);
  const auto found = state_->known.find(name);
  if (found == state_->known.end() || !found->second.link || found->second.link->lost())
    return nullptr;
  return found->second.link;
}

bool Transport::has_link_with(uint64_t incarnation) const {
  MutexLock lock(state_->mutex);
  return std::any_of(state_->links.begin(), state_->links.end(), [&](const auto& link) {
    return link->peer().incarnation == incarnation && !link->lost();
  });
}

uint64_t Transport::refused() const {
  MutexLock lock(state_->mutex);
  return state_->refused.load() + (state_->listener ? state_->listener->refused() : 0);
}

void Transport::close(const std::string& why) {
  state_->close(why);
}

}  // namespace lockstep::inline v0::rpc::internal
