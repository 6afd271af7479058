#include "lockstep/insitu/meeting.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/unix_socket.h"

namespace lockstep::inline v0::insitu {
namespace {

constexpr size_t kMaxRingName = 64;
constexpr int kBacklog = 128;
// One member may be stopped after it has let this process in: then another one is asked.
constexpr double kPatience = 1.0;
constexpr std::chrono::milliseconds kRetry{5};

enum class Door { kNobody, kTaken, kOpen };

// Connects, and takes what a member hands out.
Door knock(const std::string& name, const AbstractAddress& address, Deadline deadline,
           Meeting& meeting) {
  const UniqueFd socket = unix_socket();
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    if (errno == ECONNREFUSED || errno == ENOENT) return Door::kNobody;
    if (errno == EAGAIN || errno == EINTR) return Door::kTaken;  // many wait there
    throw system_error("insitu: connecting to the ring '" + name + "'", errno);
  }
  const UnixPeer peer = unix_peer(socket.get());
  if (peer.user != ::geteuid())
    throw InvalidArgument("insitu: the name '" + name + "' is taken by a process of user " +
                          std::to_string(peer.user) + " (pid " + std::to_string(peer.process) +
                          "); choose another name");
  try {
    const double patience =
        std::min(kPatience, std::chrono::duration<double>(deadline.remaining()).count());
    auto fds = receive_fds(socket.get(), 2, Deadline::seconds(patience), "insitu");
    meeting.memory = std::move(fds[0]);
    meeting.listener = std::move(fds[1]);
    return Door::kOpen;
  } catch (const Timeout&) {
    return Door::kTaken;
  } catch (const PeerLost&) {
    return Door::kTaken;
  } catch (const StoreError&) {
    throw InvalidArgument("insitu: the name '" + name + "' is served by pid " +
                          std::to_string(peer.process) +
                          ", which is not a ring; choose another name");
  }
}

}  // namespace

void check_name(const std::string& name) {
  const auto known = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxRingName || !std::all_of(name.begin(), name.end(), known))
    throw InvalidArgument("insitu: '" + name + "' is no name of a ring; it has 1 to " +
                          std::to_string(kMaxRingName) + " letters, digits or \"._-\"");
}

std::string socket_name(const std::string& name) {
  return "lockstep-insitu-" + std::to_string(::geteuid()) + "-" + name;
}

Meeting meet(const std::string& name, const std::optional<Geometry>& geometry, Deadline deadline) {
  check_name(name);
  const AbstractAddress address(socket_name(name));
  Meeting meeting;
  bool taken = false;
  for (;;) {
    const Door door = knock(name, address, deadline, meeting);
    if (door == Door::kOpen) return meeting;
    taken = door == Door::kTaken;
    if (door == Door::kNobody && geometry) {
      meeting.listener = unix_socket();
      // The kernel gives the name to one, which makes the memory, and only then listens. The others
      // find a name without a listener meanwhile, and come back to it as visitors.
      if (::bind(meeting.listener.get(), address.get(), address.size) == 0) {
        meeting.memory = RingMemory::make(*geometry);
        if (::listen(meeting.listener.get(), kBacklog) != 0)
          throw system_error("insitu: listening as the ring '" + name + "'", errno);
        return meeting;
      }
      if (errno != EADDRINUSE) throw system_error("insitu: taking the name '" + name + "'", errno);
      taken = true;
    }
    if (deadline.expired())
      throw Timeout(taken ? "insitu: no member of the ring '" + name + "' has answered within " +
                                std::to_string(deadline.timeout_seconds()) +
                                " s; are all its processes stopped?"
                          : "insitu: no producer has opened the ring '" + name + "' within " +
                                std::to_string(deadline.timeout_seconds()) +
                                " s; was the simulation started, by this user and on this host?");
    const auto pause = std::min<std::chrono::nanoseconds>(kRetry, deadline.remaining());
    ::poll(nullptr, 0,
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(pause).count()));
  }
}

Doorkeeper::Doorkeeper(UniqueFd listener, int memory)
    : listener_(std::move(listener)),
      memory_(::fcntl(memory, F_DUPFD_CLOEXEC, 3)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!memory_ || !stop_) throw system_error("insitu: descriptors for the ring's door", errno);
  // The application's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw system_error("insitu: starting the thread at the ring's door", EAGAIN);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Doorkeeper::~Doorkeeper() {
  const uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void Doorkeeper::serve() noexcept {
  pthread_setname_np(pthread_self(), "lockstep-insitu");
  for (;;) {
    std::array<pollfd, 2> ready{pollfd{listener_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;  // EINTR, or no memory for a moment
    if (ready[1].revents != 0) return;
    if ((ready[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return;  // a member has shut it
    // The file description is shared: another member may have changed its mode.
    ::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
    const UniqueFd visitor(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (visitor) {
      let_in(visitor.get());
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      ::poll(&ready[1], 1, 10);  // until descriptors are there again; the visitor waits
    }
  }
}

void Doorkeeper::let_in(int visitor) noexcept {
  try {
    if (unix_peer(visitor).user != ::geteuid()) return;
    // An empty socket has room for so little: this never waits for a visitor.
    send_fds(visitor, {memory_.get(), listener_.get()}, Deadline::seconds(0.1), "insitu");
  } catch (const std::exception&) {
    // The visitor has gone, and asks again if it lives.
  }
}

}  // namespace lockstep::inline v0::insitu
