// A member that writes anything into the ring's memory: the others neither crash nor touch other
// memory, and no wait outlives its deadline.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/insitu/meeting.h"
#include "lockstep/insitu/ring_member.h"
#include "lockstep/insitu/ring_test_support.h"

namespace lockstep::inline v0::insitu::ring_test {

// Another mapping of the ring's memory.
SharedMapping stolen_memory(const std::string& name, Geometry* geometry = nullptr) {
  const Meeting meeting = meet(name, std::nullopt, soon());
  MappedRing ring = map_ring(meeting.memory.get());
  if (geometry != nullptr) *geometry = ring.geometry;
  return std::move(ring.mapping);
}

TEST(HostileRing, MemoryThatIsNoRingIsRefused) {
  const UniqueFd small = make_shared_memory("test", 4096);
  EXPECT_THROW(RingMemory(UniqueFd(::dup(small.get())), true), DataError);
  const UniqueFd zeros = make_shared_memory("test", 1 << 20);
  EXPECT_THROW(RingMemory(UniqueFd(::dup(zeros.get())), true), DataError);
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1 << 20), 0);
  EXPECT_THROW(RingMemory(std::move(unsealed), true), DataError);
  Pipe pipe = make_pipe();
  EXPECT_THROW(RingMemory(std::move(pipe.read), true), DataError);
}

TEST(HostileRing, AHeaderWithoutSenseIsRefused) {
  std::mt19937_64 random(5);
  int refused = 0, accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    const UniqueFd fd = RingMemory::make({numbers_schema(), 4, 1});
    const auto bytes = static_cast<size_t>(::lseek(fd.get(), 0, SEEK_END));
    const SharedMapping memory(fd.get(), bytes);
    // The numbers at its begin, or its schema.
    const size_t reach = i % 2 == 0
                             ? offsetof(RingHeader, schema)
                             : offsetof(RingHeader, schema) + encode(numbers_schema()).size();
    memory.data()[random() % reach] = static_cast<std::byte>(random());
    try {
      const RingMemory ring(UniqueFd(::dup(fd.get())), true);
      EXPECT_EQ(ring.geometry().total_bytes(), bytes);
      ++accepted;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 5);  // names and counts of producers may be anything
}

// Everything behind the geometry changes all the time: words, owners, records, events, counts.
TEST(HostileRing, NonsenseInAllThatChangesHarmsNobody) {
  const std::string name = own_name("hostile");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 16});
  Consumer consumer = Consumer::open(name, soon());
  Geometry geometry;
  const SharedMapping memory = stolen_memory(name, &geometry);
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(11);
    const size_t begin = offsetof(RingHeader, next_number) / 8, end = geometry.slots_offset() / 8;
    const size_t words = geometry.words_offset() / 8;
    auto* const numbers = reinterpret_cast<std::atomic<uint64_t>*>(memory.data());
    while (!stop) {
      // Half of it where slots are decided on.
      const size_t place =
          random() % 2 == 0 ? begin + random() % (end - begin) : words + random() % (end - words);
      numbers[place].store(random() % 4 == 0 ? 0 : random());
    }
  });
  uint64_t done = 0;
  std::thread pusher([&] {
    while (!stop) {
      const Deadline start = soon();
      push_numbers(producer, 1, 1, Deadline::seconds(0.01));
      EXPECT_LT(start.elapsed_seconds(), 30);
      ++done;
    }
  });
  const Deadline end = Deadline::seconds(3);
  std::vector<uint64_t> sums;
  while (!end.expired()) {
    const Batch batch = consumer.take(3, Deadline::seconds(0.01));
    for (size_t i = 0; i < batch.size(); ++i) read_numbers(batch, i);
    consumer.ended();
    sums.push_back(consumer.stats().produced);
    if (sums.size() % 16 == 0) {
      try {
        Producer::open(name, numbers_schema(), {}, soon()).close();
      } catch (const Error&) {
        // Full of members that are none.
      }
    }
  }
  stop = true;
  scribbler.join();
  pusher.join();
  EXPECT_GT(done, 10u);
  EXPECT_GT(sums.size(), 10u);
  producer.close(Deadline::seconds(0.01));
}

// A sleeper whose wake-up is lost, since the events are overwritten, wakes by itself.
TEST(HostileRing, ALostWakeUpCostsAMoment) {
  const std::string name = own_name("events");
  Producer producer = Producer::open(name, numbers_schema());
  Consumer consumer = Consumer::open(name, soon());
  const SharedMapping memory = stolen_memory(name);
  auto& header = *reinterpret_cast<RingHeader*>(memory.data());
  std::atomic<bool> stop{false};
  std::thread silencer([&] {
    while (!stop) {
      header.data.asleep.store(0);
      header.space.asleep.store(0);
    }
  });
  std::thread trainer([&] { EXPECT_EQ(consumer.take(1, soon()).size(), 1u); });
  ::usleep(20000);
  EXPECT_TRUE(push_numbers(producer, 1, 1, soon()));
  trainer.join();
  stop = true;
  silencer.join();
}

}  // namespace lockstep::inline v0::insitu::ring_test
