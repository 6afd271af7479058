#include "lockstep/comm/engines/shm/process_peer_memory.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/process_memory.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::shm {
namespace {

enum Step : uint32_t { kNothing, kShown, kCannot, kCan };

}  // namespace

ProcessPeerMemory::ProcessPeerMemory(rounds::Region region, int rank, std::shared_ptr<Arena> arena,
                                     std::vector<int32_t> pids, std::function<bool(int)> hung_up,
                                     Deadline deadline)
    : rank_(rank),
      arena_(std::move(arena)),
      hung_up_(std::move(hung_up)),
      pids_(std::move(pids)),
      seen_alive_(static_cast<size_t>(region.size())) {
  // A word that a wrong process, in another PID namespace, would not have at that address.
  const uint64_t word = random_word();
  rounds::RankState& own = region.rank(rank);
  own.probe_address = reinterpret_cast<uint64_t>(&word);
  own.probe_value = word;
  own.pid.store(static_cast<int32_t>(::getpid()), std::memory_order_relaxed);  // informational
  own.peer_memory_step.store(kShown, std::memory_order_release);
  await_step(region, kShown, deadline);
  own.peer_memory_step.store(probe(region) ? kCan : kCannot, std::memory_order_release);
  await_step(region, kCannot, deadline);  // the word must exist until here
  copies_ = true;
  for (int r = 0; r < region.size(); ++r)
    copies_ &= region.rank(r).peer_memory_step.load(std::memory_order_acquire) == kCan;
}

void ProcessPeerMemory::await_step(rounds::Region region, uint32_t step, Deadline deadline) const {
  for (int r = 0; r < region.size(); ++r) {
    for (int tries = 0; region.rank(r).peer_memory_step.load(std::memory_order_acquire) < step;
         ++tries) {
      if (hung_up_(r))
        throw PeerLost("rank " + std::to_string(r) + " went away while the group was being made",
                       r);
      if (deadline.expired()) {
        throw Timeout("shm: rank " + std::to_string(rank_) + " waited " +
                      std::to_string(deadline.timeout_seconds()) + " s for rank " +
                      std::to_string(r) + " to map the shared memory");
      }
      if (tries < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

bool ProcessPeerMemory::probe(rounds::Region region) const {
  for (int r = 0; r < region.size(); ++r) {
    if (r == rank_) continue;
    const int32_t pid = pids_[static_cast<size_t>(r)];
    const rounds::RankState& state = region.rank(r);
    const MemoryProof proof{state.probe_address, state.probe_value};
    if (pid == 0 || !read_memory(pid, proof, 0, nullptr, 0)) return false;
  }
  return true;
}

std::optional<rounds::Window> ProcessPeerMemory::find(const std::byte* memory,
                                                      int64_t bytes) const {
  return arena_ ? arena_->find(memory, bytes) : std::nullopt;
}

std::byte* ProcessPeerMemory::peer(int rank, rounds::Window window) const {
  return arena_ ? arena_->peer(rank, window) : nullptr;
}

SymmetricMemory ProcessPeerMemory::allocate(int64_t bytes) {
  return arena_ ? owned(arena_->allocate(bytes)) : SymmetricMemory();
}

SymmetricMemory ProcessPeerMemory::allocate_shared(int64_t bytes) {
  return arena_ ? owned(arena_->allocate_shared(bytes)) : SymmetricMemory();
}

// A tensor may outlive the group, and then keeps the arena alive.
SymmetricMemory ProcessPeerMemory::owned(std::byte* data) const {
  std::shared_ptr<void> owner(
      data, [arena = arena_](void* memory) { arena->release(static_cast<std::byte*>(memory)); });
  return {data, std::move(owner), [arena = arena_, data] { arena->warm(data); }};
}

// The PID may belong to another process soon after the rank died. `error` is the error of accessing
// its memory; a dying process releases its memory (ESRCH) shortly before its end of the pipe.
void ProcessPeerMemory::check_alive(int rank, int error) const {
  if (error == ESRCH || hung_up_(rank))
    throw PeerLost("rank " + std::to_string(rank) + "'s process is dead", rank);
}

// Each check costs a system call. A process id is not reused within microseconds: its owner must
// die and be waited for, and all other ids must be used first.
void ProcessPeerMemory::check_alive_soon(int rank) const {
  uint64_t& seen = seen_alive_[static_cast<size_t>(rank)];
  const uint64_t now = ticks();
  if (now - seen < about_ticks(std::chrono::microseconds(20))) return;
  check_alive(rank);
  seen = now;
}

void ProcessPeerMemory::read(int rank, uint64_t address, std::byte* to, int64_t bytes) const {
  check_alive_soon(rank);
  if (read_memory(pids_[static_cast<size_t>(rank)], address, to, static_cast<size_t>(bytes)))
    return;
  const int error = errno;
  check_alive(rank, error);
  throw system_error("process_vm_readv from rank " + std::to_string(rank), error);
}

void ProcessPeerMemory::write(int rank, uint64_t address, const std::byte* from,
                              int64_t bytes) const {
  check_alive_soon(rank);
  if (write_memory(pids_[static_cast<size_t>(rank)], address, from, static_cast<size_t>(bytes)))
    return;
  const int error = errno;
  check_alive(rank, error);
  throw system_error("process_vm_writev to rank " + std::to_string(rank), error);
}

}  // namespace lockstep::inline v0::shm
