#include "lockstep/comm/engines/shm/segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/comm/engines/shm/arena.h"
#include "lockstep/comm/engines/shm/door.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/shared_memory.h"
#include "lockstep/core/unix_socket.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::inline v0::shm {
namespace {

constexpr const char* kDoorKey = "door";         // the socket's abstract name
constexpr const char* kSecretKey = "secret";     // the secret that both sides prove
constexpr std::chrono::milliseconds kLook{100};  // between two looks at the store

// Rank 0's descriptors; PeerLost names it.
std::vector<UniqueFd> from_rank_0(int socket, size_t count, Deadline deadline) {
  try {
    return receive_fds(socket, count, deadline, "waiting for rank 0 to hand out shared memory");
  } catch (const PeerLost&) {
    throw PeerLost("rank 0 went away while the shared memory was handed out", 0);
  }
}

// Where the system refuses so large a file (RLIMIT_FSIZE), an empty one stands for the missing
// arena.
UniqueFd make_arena(int size) {
  try {
    return Arena::make_memory(size);
  } catch (const SystemError&) {
    UniqueFd empty(::memfd_create("lockstep-empty", MFD_CLOEXEC));
    if (!empty) throw system_error("memfd_create", errno);
    return empty;
  }
}

std::string missing_ranks(const std::vector<UniqueFd>& sockets) {
  std::string text;
  for (size_t r = 1; r < sockets.size(); ++r) {
    if (!sockets[r]) text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
  }
  return text;
}

}  // namespace

Segment::Segment(Store& store, int rank, int size, size_t bytes,
                 void (*initialise)(std::byte*, void*), void* argument, Deadline deadline)
    : others_(size), pids_(size) {
  pids_[rank] = ::getpid();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("pipe2", errno);
  UniqueFd reader(ends[0]);
  life_.reset(ends[1]);
  if (rank == 0) {
    memfd_ = make_shared_memory("lockstep", bytes);
    map(bytes);
    initialise(memory_, argument);
    arena_ = make_arena(size);
    serve(store, size, std::move(reader), deadline);
  } else {
    fetch(store, rank, size, std::move(reader), deadline);
    map(bytes);
  }
}

Segment::~Segment() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

void Segment::map(size_t bytes) {
  const off_t there = ::lseek(memfd_.get(), 0, SEEK_END);
  if (there != static_cast<off_t>(bytes)) {
    throw Mismatch("rank 0's shared memory has " + std::to_string(there) +
                   " bytes, this rank expects " + std::to_string(bytes) +
                   "; run the same Lockstep version on every rank");
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0);
  if (memory == MAP_FAILED) throw system_error("mmap of shared memory", errno);
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

void Segment::serve(Store& store, int size, UniqueFd own_reader, Deadline deadline) {
  if (size == 1) return;
  const Secret secret = Secret::generate();
  Door door(secret, size);
  store.set(kSecretKey, secret.text());
  store.set(kDoorKey, door.name());

  std::vector<UniqueFd> sockets(size);
  for (int arrived = 1; arrived < size;) {
    std::optional<Door::Visitor> visitor =
        door.next(Deadline::after(std::min<Deadline::Duration>(kLook, deadline.remaining())));
    if (!visitor && deadline.expired())
      throw Timeout("shm: rank 0 waited " + std::to_string(deadline.timeout_seconds()) +
                    " s; not arrived: " + missing_ranks(sockets) +
                    "; were they started, and on this host?");
    if (!visitor) {
      // A missing rank may have reported in the store that it failed: then this look throws.
      store.try_get(kDoorKey);
      continue;
    }
    int32_t rank = -1;
    std::vector<UniqueFd> reader;
    try {
      read_exact(visitor->fd.get(), &rank, sizeof rank, deadline);
      reader = receive_fds(visitor->fd.get(), 1, deadline);
    } catch (const StoreError&) {
      continue;  // perhaps of another version; the job continues
    } catch (const PeerLost&) {
      continue;
    }
    if (rank < 1 || rank >= size || sockets[rank])
      throw Mismatch("two processes say they are rank " + std::to_string(rank));
    others_[rank] = std::move(reader[0]);
    pids_[rank] = visitor->process;
    sockets[rank] = std::move(visitor->fd);
    ++arrived;
  }
  // Every rank gets the memory and all ranks' pipes, including its own, which it keeps closed.
  std::vector<int> fds{memfd_.get(), arena_.get(), own_reader.get()};
  for (int r = 1; r < size; ++r) fds.push_back(others_[r].get());
  for (int r = 1; r < size; ++r) {
    send_fds(sockets[r].get(), fds, deadline);
    write_exact(sockets[r].get(), pids_.data(), pids_.size() * sizeof pids_[0], deadline);
  }
}

void Segment::fetch(Store& store, int rank, int size, UniqueFd own_reader, Deadline deadline) {
  const std::string name = store.get(kDoorKey, deadline);
  const Secret secret = Secret::from_text(store.get(kSecretKey, deadline));
  UniqueFd socket = unix_socket();
  const AbstractAddress address(name);
  while (::connect(socket.get(), address.get(), address.size) != 0) {
    // Other ranks wait there, and poll() does not report when they have connected.
    if (errno == EAGAIN) {
      if (deadline.expired())
        throw Timeout("shm: rank 0 has let no rank in within " +
                      std::to_string(deadline.timeout_seconds()) +
                      " s, and many wait for it; is it stopped?");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } else if (errno == ECONNREFUSED || errno == ENOENT) {
      throw PeerLost(
          "rank 0's shared memory cannot be reached: it is gone, or on another host or network "
          "namespace",
          0);
    } else if (errno != EINTR) {
      throw system_error("connect to the shared memory's socket", errno);
    }
  }
  const int32_t served_by = same_users_process(socket.get());
  try {
    wire::authenticate_as_client(socket.get(), secret, kPurpose, deadline);
    const int32_t self = rank;
    write_exact(socket.get(), &self, sizeof self, deadline);
    send_fds(socket.get(), {own_reader.get()}, deadline);
  } catch (const PeerLost&) {
    throw PeerLost("rank 0 went away while the group was being made", 0);
  }
  std::vector<UniqueFd> fds = from_rank_0(socket.get(), static_cast<size_t>(size) + 2, deadline);
  try {
    read_exact(socket.get(), pids_.data(), pids_.size() * sizeof pids_[0], deadline);
  } catch (const PeerLost&) {
    throw PeerLost("rank 0 went away while the shared memory was handed out", 0);
  }
  pids_[0] = served_by;
  pids_[rank] = ::getpid();
  memfd_ = std::move(fds[0]);
  arena_ = std::move(fds[1]);
  for (int r = 0; r < size; ++r) {
    if (r != rank) others_[r] = std::move(fds[static_cast<size_t>(r) + 2]);
  }
}

bool Segment::hung_up(int rank) const {
  if (!others_[rank]) return false;
  pollfd state{others_[rank].get(), 0, 0};  // POLLHUP is always reported
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace lockstep::inline v0::shm
