// Producers and consumers as threads of one process.
#include "lockstep/insitu/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/insitu/ring_test_support.h"

namespace lockstep::inline v0::insitu::ring_test {

using ::testing::HasSubstr;

TEST(Ring, HandsSamplesOverInTheirOrder) {
  const std::string name = own_name("order");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 4});
  Consumer consumer = Consumer::open(name, soon(), numbers_schema());
  EXPECT_EQ(consumer.slots(), 4);
  // Many laps around the ring.
  int64_t next = 0;
  for (int64_t i = 0; i < 100; i += 3) {
    for (int64_t n = 0; n < 3; ++n) ASSERT_TRUE(push_numbers(producer, 7, i + n, now()));
    const Batch batch = consumer.take(3, soon());
    ASSERT_EQ(batch.size(), 3u);
    for (size_t n = 0; n < 3; ++n) {
      const Numbers read = read_numbers(batch, n);
      EXPECT_EQ(read.sender, 7);
      EXPECT_EQ(read.index, next++);
      EXPECT_TRUE(read.whole);
      if (n > 0) {
        EXPECT_GT(batch.number(n), batch.number(n - 1));
      }
    }
  }
  EXPECT_FALSE(consumer.ended());
  EXPECT_TRUE(producer.close());
  EXPECT_TRUE(consumer.ended());
  EXPECT_TRUE(consumer.take(4, soon()).empty());
  EXPECT_THROW(producer.begin(now()), InvalidArgument);
}

TEST(Ring, AShortDeadlineGivesWhatIsThere) {
  const std::string name = own_name("short");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 8});
  Consumer consumer = Consumer::open(name, soon());
  EXPECT_TRUE(consumer.take(2, now()).empty());
  ASSERT_TRUE(push_numbers(producer, 1, 1, now()));
  EXPECT_EQ(consumer.take(2, Deadline::seconds(0.02)).size(), 1u);
  EXPECT_THROW(consumer.take(0, now()), InvalidArgument);
  EXPECT_THROW(consumer.take(9, now()), InvalidArgument);
}

TEST(Ring, AFullRingDropsTheNewest) {
  const std::string name = own_name("newest");
  Producer producer =
      Producer::open(name, numbers_schema(), {.slots = 3, .on_full = OnFull::kDropNewest});
  Consumer consumer = Consumer::open(name, soon());
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(push_numbers(producer, 1, i, soon()), i < 3);
  const Batch batch = consumer.take(3, soon());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(read_numbers(batch, i).index, static_cast<int64_t>(i));
  EXPECT_EQ(producer.stats().dropped, 2u);
  EXPECT_EQ(producer.stats().produced, 3u);
  EXPECT_FALSE(push_numbers(producer, 1, 9, soon()));  // the batch holds all slots
}

TEST(Ring, AFullRingDropsTheOldest) {
  const std::string name = own_name("oldest");
  Producer producer =
      Producer::open(name, numbers_schema(), {.slots = 3, .on_full = OnFull::kDropOldest});
  Consumer consumer = Consumer::open(name, soon());
  for (int64_t i = 0; i < 10; ++i) EXPECT_TRUE(push_numbers(producer, 1, i, now()));
  Batch batch = consumer.take(3, soon());
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(read_numbers(batch, i).index, 7 + static_cast<int64_t>(i));
  EXPECT_EQ(producer.stats().dropped, 7u);
  // What a consumer holds is not overwritten.
  EXPECT_FALSE(push_numbers(producer, 1, 10, soon()));
  EXPECT_EQ(producer.stats().dropped, 8u);
  EXPECT_EQ(read_numbers(batch, 0).index, 7);
  batch.clear();
  EXPECT_TRUE(push_numbers(producer, 1, 11, now()));
}

TEST(Ring, AFullRingWaitsUntilTheDeadline) {
  const std::string name = own_name("wait");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 2});
  Consumer consumer = Consumer::open(name, soon());
  for (int64_t i = 0; i < 2; ++i) ASSERT_TRUE(push_numbers(producer, 1, i, now()));
  const Deadline start = soon();
  EXPECT_FALSE(push_numbers(producer, 1, 2, Deadline::seconds(0.05)));
  EXPECT_GE(start.elapsed_seconds(), 0.05);
  EXPECT_EQ(producer.stats().dropped, 1u);
  EXPECT_GE(producer.stats().members[0].waited_seconds, 0.05);
  std::thread trainer([&] { EXPECT_EQ(consumer.take(1, soon()).size(), 1u); });
  EXPECT_TRUE(push_numbers(producer, 1, 3, soon()));
  trainer.join();
}

TEST(Ring, ASlotThatIsNotCommittedIsGivenBack) {
  const std::string name = own_name("abandon");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 1});
  Consumer consumer = Consumer::open(name, soon());
  for (int i = 0; i < 3; ++i) {
    auto slot = producer.begin(now());
    ASSERT_TRUE(slot);
    EXPECT_FALSE(producer.begin(now()));
    EXPECT_TRUE(consumer.take(1, now()).empty());
  }
  EXPECT_EQ(producer.stats().abandoned, 3u);
  auto slot = producer.begin(now());
  ASSERT_TRUE(slot);
  EXPECT_THROW(slot->data(3), InvalidArgument);
  slot->commit();
  EXPECT_THROW(slot->commit(), InvalidArgument);
  EXPECT_THROW(slot->data(0), InvalidArgument);
  slot.reset();
  EXPECT_EQ(consumer.take(1, now()).size(), 1u);
}

TEST(Ring, ABatchIsPutBackAndSplit) {
  const std::string name = own_name("back");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 4});
  Consumer consumer = Consumer::open(name, soon());
  for (int64_t i = 0; i < 4; ++i) ASSERT_TRUE(push_numbers(producer, 1, i, now()));
  Batch batch = consumer.take(2, soon());
  batch.put_back();
  batch = consumer.take(4, soon());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(read_numbers(batch, i).index, static_cast<int64_t>(i));
  Batch one = batch.split(1);
  EXPECT_EQ(read_numbers(one, 0).index, 1);
  EXPECT_EQ(read_numbers(batch, 1).index, 2);
  EXPECT_THROW(batch.split(3), InvalidArgument);
  EXPECT_THROW(batch.data(0, 3), InvalidArgument);
  batch.clear();
  EXPECT_EQ(consumer.stats().reading, 1);
  one.clear();
  EXPECT_EQ(consumer.stats().consumed, 4u);
  EXPECT_EQ(consumer.stats().reading, 0);
}

TEST(Ring, AnotherSchemaIsNamedWithBothForms) {
  const std::string name = own_name("schema");
  const Producer producer = Producer::open(name, numbers_schema(100));
  try {
    Producer::open(name, numbers_schema(90));
    FAIL() << "no Mismatch";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), HasSubstr("values int64 [100]"));
    EXPECT_THAT(error.what(), HasSubstr("values int64 [90]"));
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  EXPECT_THROW(Consumer::open(name, soon(), numbers_schema(7)), Mismatch);
  EXPECT_EQ(producer.stats().members.size(), 1u);
}

TEST(Ring, BadOptionsAreNamed) {
  const std::string name = own_name("options");
  EXPECT_THROW(Producer::open(name, numbers_schema(), {.slots = 0}), InvalidArgument);
  EXPECT_THROW(Producer::open(name, numbers_schema(), {.slots = 4097}), InvalidArgument);
  EXPECT_THROW(Producer::open(name, numbers_schema(), {.producers = 0}), InvalidArgument);
  EXPECT_THROW(Producer::open(name, Schema()), InvalidArgument);
  EXPECT_THROW(Producer::open("", numbers_schema()), InvalidArgument);
  EXPECT_THROW(Producer::open("a/b", numbers_schema()), InvalidArgument);
  EXPECT_THROW(Producer::open(std::string(65, 'x'), numbers_schema()), InvalidArgument);
  Producer producer = Producer::open(name, numbers_schema());
  EXPECT_THROW(producer.push({}, now()), InvalidArgument);
}

TEST(Ring, AConsumerWaitsForTheFirstProducer) {
  const std::string name = own_name("first");
  EXPECT_THROW(Consumer::open(name, Deadline::seconds(0.02)), Timeout);
  std::thread trainer([&] {
    Consumer consumer = Consumer::open(name, soon());
    EXPECT_EQ(consumer.take(1, soon()).size(), 1u);
  });
  Producer producer = Producer::open(name, numbers_schema());
  EXPECT_TRUE(push_numbers(producer, 1, 1, soon()));
  EXPECT_TRUE(producer.close(soon()));
  trainer.join();
}

TEST(Ring, TheStreamEndsWhenAllAnnouncedProducersHaveFinishedAndBeginsAnew) {
  const std::string name = own_name("end");
  std::optional<Producer> first = Producer::open(name, numbers_schema(), {.producers = 2});
  Consumer consumer = Consumer::open(name, soon());
  ASSERT_TRUE(push_numbers(*first, 1, 1, now()));
  EXPECT_FALSE(first->close());  // nobody has taken the sample
  EXPECT_EQ(consumer.take(2, Deadline::seconds(0.02)).size(), 1u);
  EXPECT_FALSE(consumer.ended());
  {
    const Producer second = Producer::open(name, numbers_schema());
    EXPECT_FALSE(consumer.ended());
  }  // without close(): lost
  EXPECT_TRUE(consumer.ended());
  EXPECT_TRUE(consumer.take(2, soon()).empty());
  EXPECT_EQ(consumer.stats().members[2].state, MemberState::kLost);
  EXPECT_EQ(consumer.stats().members[0].state, MemberState::kClosed);
  first.reset();
  // The consumer alone keeps the ring.
  Producer third = Producer::open(name, numbers_schema());
  EXPECT_FALSE(consumer.ended());
  ASSERT_TRUE(push_numbers(third, 3, 3, now()));
  EXPECT_EQ(consumer.take(1, soon()).size(), 1u);
}

TEST(Ring, SlotsAndBatchesOutliveTheirMembers) {
  const std::string name = own_name("outlive");
  std::optional<Producer> producer = Producer::open(name, numbers_schema());
  std::optional<Consumer> consumer = Consumer::open(name, soon());
  ASSERT_TRUE(push_numbers(*producer, 1, 5, now()));
  const Batch batch = consumer->take(1, soon());
  auto slot = producer->begin(now());
  consumer.reset();
  producer.reset();
  slot->commit();
  EXPECT_EQ(read_numbers(batch, 0).index, 5);
}

TEST(Ring, MovesLeaveOneOwner) {
  const std::string name = own_name("moves");
  Producer producer = Producer::open(name, numbers_schema(), {.slots = 2});
  Consumer consumer = Consumer::open(name, soon());
  auto one = producer.begin(now()), other = producer.begin(now());
  *one = std::move(*other);  // gives the first one back
  EXPECT_EQ(producer.stats().writing, 1);
  one->commit();
  Batch batch = consumer.take(1, soon());
  Batch moved = std::move(batch);
  EXPECT_EQ(moved.size(), 1u);
  moved = Batch();
  EXPECT_EQ(consumer.stats().consumed, 1u);
}

TEST(Ring, OneByteAndAHundredMegabytes) {
  for (const int64_t bytes : {int64_t{1}, int64_t{100} << 20}) {
    const std::string name = own_name("size" + std::to_string(bytes));
    Producer producer = Producer::open(name, Schema({{"x", DType::kUInt8, {bytes}}}), {.slots = 2});
    Consumer consumer = Consumer::open(name, soon());
    std::vector<uint8_t> data(static_cast<size_t>(bytes));
    for (uint8_t lap = 0; lap < 5; ++lap) {
      for (size_t i = 0; i < data.size(); i += 4097) data[i] = static_cast<uint8_t>(lap + i);
      data.back() = lap;
      ASSERT_TRUE(producer.push({data.data()}, soon()));
      const Batch batch = consumer.take(1, soon());
      ASSERT_EQ(batch.size(), 1u);
      EXPECT_EQ(std::memcmp(batch.data(0, 0), data.data(), data.size()), 0);
    }
  }
}

// Each sample arrives once, whole, and those of one producer in their order at each consumer.
TEST(Ring, ManyProducersAndConsumersLoseNothing) {
  constexpr int kProducers = 3, kConsumers = 3;
  constexpr int64_t kSamples = 2000;
  const std::string name = own_name("many");
  const ProducerOptions options{.slots = 8, .producers = kProducers};
  std::vector<Producer> producers;
  for (int p = 0; p < kProducers; ++p)
    producers.push_back(Producer::open(name, numbers_schema(), options));
  std::vector<std::vector<Numbers>> taken(kConsumers);
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, c] {
      Consumer consumer = Consumer::open(name, soon());
      for (;;) {
        const Batch batch = consumer.take(2, soon());
        if (batch.empty()) {
          EXPECT_TRUE(consumer.ended());
          return;
        }
        for (size_t i = 0; i < batch.size(); ++i) {
          taken[c].push_back(read_numbers(batch, i));
          torn += taken[c].back().whole ? 0 : 1;
        }
      }
    });
  }
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int64_t i = 0; i < kSamples; ++i) EXPECT_TRUE(push_numbers(producers[p], p, i, soon()));
      producers[p].close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  std::set<std::pair<int32_t, int64_t>> seen;
  for (const auto& of_one : taken) {
    std::vector<int64_t> last(kProducers, -1);
    for (const Numbers& read : of_one) {
      EXPECT_TRUE(seen.insert({read.sender, read.index}).second);
      EXPECT_GT(read.index, last[read.sender]);
      last[read.sender] = read.index;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kProducers * kSamples));
  const RingStats stats = producers[0].stats();
  EXPECT_EQ(stats.produced, stats.consumed);
  EXPECT_EQ(stats.dropped, 0u);
  EXPECT_THAT(stats.to_string(), HasSubstr("6000 produced, 6000 consumed, 0 dropped"));
}

// Producers that overwrite never give a torn sample, and no count is lost.
TEST(Ring, OverwritingTearsNothing) {
  constexpr int kProducers = 2;
  constexpr int64_t kSamples = 5000;
  const std::string name = own_name("overwrite");
  std::vector<Producer> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.push_back(
        Producer::open(name, numbers_schema(),
                       {.slots = 4, .on_full = OnFull::kDropOldest, .producers = kProducers}));
  }
  std::atomic<int> torn{0}, taken{0};
  Consumer consumer = Consumer::open(name, soon());
  std::thread trainer([&] {
    for (;;) {
      const Batch batch = consumer.take(1, soon());
      if (batch.empty()) return;
      torn += read_numbers(batch, 0).whole ? 0 : 1;
      ++taken;
    }
  });
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int64_t i = 0; i < kSamples; ++i)
        refused += push_numbers(producers[p], p, i, now()) ? 0 : 1;
      producers[p].close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  trainer.join();
  EXPECT_EQ(torn, 0);
  const RingStats stats = consumer.stats();
  EXPECT_EQ(stats.produced + refused, static_cast<uint64_t>(kProducers * kSamples));
  EXPECT_EQ(stats.produced - (stats.dropped - refused), static_cast<uint64_t>(taken));
}

}  // namespace lockstep::inline v0::insitu::ring_test
