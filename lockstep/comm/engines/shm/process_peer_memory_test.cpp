// The process whose memory a rank of shm copies: ranks are threads, one of which lies.
#include "lockstep/comm/engines/shm/process_peer_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/comm/engines/rounds/region.h"
#include "lockstep/comm/engines/shm/segment.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::shm {
namespace process_peer_memory_test {

constexpr rounds::RegionShape kShape{.size = 2, .slot_bytes = 128, .channel_bytes = 128};

Segment segment_of(Store& store, int rank) {
  rounds::RegionShape shape = kShape;
  const auto initialise = [](std::byte* memory, void* argument) {
    rounds::Region(memory, *static_cast<const rounds::RegionShape*>(argument)).initialise();
  };
  return Segment(store, rank, kShape.size, rounds::Region::bytes(kShape), initialise, &shape,
                 Deadline::seconds(60));
}

// Rank 1 publishes the PID of another process in the shared memory: the kernel's value is the one
// that counts.
TEST(ProcessPeerMemory, TheKernelSaysWhichProcessARankIs) {
  HashStore store;
  uint64_t word = 4711;
  std::thread liar([&] {
    const Segment segment = segment_of(store, 1);
    EXPECT_EQ(segment.pids(), std::vector<int32_t>(2, ::getpid()));
    rounds::RankState& own = rounds::Region(segment.memory(), kShape).rank(1);
    own.probe_address = reinterpret_cast<uint64_t>(&word);
    own.probe_value = word;
    own.pid = 1;
    own.peer_memory_step = 3;  // and pretends to read the other's memory
    while (!segment.hung_up(0)) std::this_thread::yield();
  });
  {
    const Segment segment = segment_of(store, 0);
    EXPECT_EQ(segment.pids(), std::vector<int32_t>(2, ::getpid()));
    const ProcessPeerMemory peer_memory(
        rounds::Region(segment.memory(), kShape), 0, nullptr, segment.pids(),
        [&](int rank) { return segment.hung_up(rank); }, Deadline::seconds(60));
    EXPECT_TRUE(peer_memory.copies());
    uint64_t read = 0;
    peer_memory.read(1, reinterpret_cast<uint64_t>(&word), reinterpret_cast<std::byte*>(&read),
                     sizeof read);
    EXPECT_EQ(read, word);
  }
  liar.join();
}

}  // namespace process_peer_memory_test
}  // namespace lockstep::inline v0::shm
