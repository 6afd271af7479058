// Simulations and trainers as processes, which are killed and stopped at any point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/insitu/meeting.h"
#include "lockstep/insitu/ring.h"
#include "lockstep/insitu/ring_test_support.h"

namespace lockstep::inline v0::insitu::ring_test {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// A started insitu_test_program, and its output.
class Child {
 public:
  explicit Child(const Words& words) : out_(make_pipe()), process_(options(words)) {
    out_.write.reset();
  }
  Child(Child&&) = delete;

  void await(const std::string& text) {
    const Deadline deadline = soon();
    while (text_.find(text) == std::string::npos && !deadline.expired()) {
      if (!read(100)) break;
    }
    EXPECT_THAT(text_, HasSubstr(text));
  }
  // Its output, once it has ended well.
  std::string finish() {
    const Deadline deadline = soon();
    while (read(100) && !deadline.expired()) {
    }
    EXPECT_TRUE(process_.wait(soon()).ok()) << text_;
    return text_;
  }
  void signal(int number) { process_.signal(number); }
  void kill() {
    process_.signal(SIGKILL);
    process_.wait(soon());
  }

 private:
  SubprocessOptions options(Words words) {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    words.insert(words.begin(), (folder / "insitu_test_program").string());
    SubprocessOptions options;
    options.command = words;
    options.stdout_fd = out_.write.get();
    return options;
  }
  // False at the end of the output.
  bool read(int milliseconds) {
    pollfd ready{out_.read.get(), POLLIN, 0};
    if (::poll(&ready, 1, milliseconds) <= 0) return true;
    char piece[4096];
    const ssize_t n = ::read(out_.read.get(), piece, sizeof piece);
    if (n > 0) text_.append(piece, static_cast<size_t>(n));
    return n > 0;
  }

  Pipe out_;
  std::string text_;
  Subprocess process_;
};

Words producing(const std::string& name, int sender, OnFull on_full, int count,
                const std::string& deadline = "60", int slots = 4) {
  return {"produce",
          name,
          std::to_string(sender),
          std::to_string(slots),
          std::to_string(static_cast<int>(on_full)),
          std::to_string(count),
          deadline};
}

// So that a death finds any instruction: none to a few milliseconds.
class Moments {
 public:
  explicit Moments(uint32_t seed) : random_(seed) {}
  void pass() { ::usleep(random_() % 4000); }
  bool coin() { return random_() % 2 == 0; }

 private:
  std::mt19937 random_;
};

TEST(RingProcesses, ASimulationAndATrainerAlone) {
  const std::string name = own_name("alone");
  Child trainer({"consume", name, "3"});  // before the simulation
  Child simulation(producing(name, 1, OnFull::kWait, 5000));
  EXPECT_THAT(simulation.finish(), HasSubstr("pushed 5000 dropped 0"));
  EXPECT_THAT(trainer.finish(), HasSubstr("took 5000 torn 0 twice 0"));
  EXPECT_THROW(Consumer::open(name, now()), Timeout);  // nothing is left
}

TEST(RingProcesses, AKilledProducersSlotIsFreeAgain) {
  const std::string name = own_name("slot");
  Producer own = Producer::open(name, numbers_schema(), {.slots = 1});
  Child other({"hold", name, "produce"});
  other.await("holds");
  EXPECT_FALSE(own.begin(Deadline::seconds(0.1)));
  other.kill();
  EXPECT_TRUE(push_numbers(own, 1, 1, soon()));
  EXPECT_EQ(own.stats().abandoned, 1u);
  EXPECT_EQ(own.stats().members[1].state, MemberState::kLost);
}

TEST(RingProcesses, AKilledConsumersSampleGoesToAnother) {
  const std::string name = own_name("sample");
  Producer own = Producer::open(name, numbers_schema(), {.slots = 1});
  ASSERT_TRUE(push_numbers(own, 1, 17, now()));
  Child other({"hold", name, "consume"});
  other.await("holds");
  Consumer consumer = Consumer::open(name, soon());
  EXPECT_TRUE(consumer.take(1, Deadline::seconds(0.1)).empty());
  other.kill();
  const Batch batch = consumer.take(1, soon());
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(read_numbers(batch, 0).index, 17);
  EXPECT_EQ(consumer.stats().redelivered, 1u);
}

// A stopped member keeps one slot, and delays nobody.
TEST(RingProcesses, AStoppedMemberDelaysNobody) {
  const std::string name = own_name("stopped");
  Producer own = Producer::open(name, numbers_schema(), {.slots = 3});
  Child producer({"hold", name, "produce"});
  producer.await("holds");
  ASSERT_TRUE(push_numbers(own, 1, 0, now()));
  Child consumer({"hold", name, "consume"});
  consumer.await("holds");
  producer.signal(SIGSTOP);
  consumer.signal(SIGSTOP);
  Consumer trainer = Consumer::open(name, soon());
  for (int64_t i = 1; i < 50; ++i) {
    ASSERT_TRUE(push_numbers(own, 1, i, now()));
    const Batch batch = trainer.take(1, soon());
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(read_numbers(batch, 0).index, i);
  }
  EXPECT_EQ(own.stats().abandoned + own.stats().redelivered, 0u);
}

TEST(RingProcesses, TheLastMemberKeepsTheRing) {
  const std::string name = own_name("last");
  Child simulation(producing(name, 1, OnFull::kDropOldest, 0));
  simulation.await("open");
  Consumer trainer = Consumer::open(name, soon());
  EXPECT_EQ(trainer.take(4, soon()).size(), 4u);
  simulation.kill();
  size_t rest = 0;
  for (;;) {
    const Batch batch = trainer.take(1, soon());
    if (batch.empty()) break;
    EXPECT_TRUE(read_numbers(batch, 0).whole);
    ++rest;
  }
  EXPECT_LE(rest, 4u);
  EXPECT_TRUE(trainer.ended());
  // A new simulation finds the trainer.
  Child next(producing(name, 2, OnFull::kWait, 10));
  next.await("open");
  EXPECT_EQ(read_numbers(trainer.take(1, soon()), 0).sender, 2);
}

// Trainers die and stop; the simulation makes every step, and no sample that arrives is torn.
TEST(RingProcesses, KilledTrainersDoNotStopTheSimulation) {
  for (const OnFull on_full : {OnFull::kWait, OnFull::kDropNewest, OnFull::kDropOldest}) {
    const std::string name = own_name("trainers" + std::to_string(static_cast<int>(on_full)));
    Child simulation(producing(name, 1, on_full, 0, "0.002"));
    Moments moments(static_cast<uint32_t>(on_full) + 1);
    Consumer own = Consumer::open(name, soon());
    uint64_t before = own.stats().produced;
    for (int i = 0; i < 50; ++i) {
      Child trainer({"consume", name, "2"});
      trainer.await("open");
      moments.pass();
      if (moments.coin()) trainer.signal(SIGSTOP);
      trainer.kill();
    }
    // Nothing that the dead held is missing, and the ring goes on.
    std::vector<Batch> all;
    while (all.size() < 4) {
      all.push_back(own.take(1, soon()));
      ASSERT_EQ(all.back().size(), 1u);
      EXPECT_TRUE(read_numbers(all.back(), 0).whole);
    }
    all.clear();
    while (own.stats().produced < before + 8) {
      const Batch batch = own.take(1, soon());
      ASSERT_EQ(batch.size(), 1u);
    }
    simulation.kill();
  }
}

// Simulations die and stop; the trainer goes on, and no sample that arrives is torn.
TEST(RingProcesses, KilledSimulationsDoNotStopTheTrainer) {
  const std::string name = own_name("simulations");
  const OnFull policies[] = {OnFull::kWait, OnFull::kDropNewest, OnFull::kDropOldest};
  Producer own = Producer::open(name, numbers_schema(), {.slots = 4});
  Child trainer({"consume", name, "2"});
  trainer.await("open");
  Moments moments(9);
  for (int i = 0; i < 150; ++i) {
    Child simulation(producing(name, i, policies[i % 3], 0, "0.002"));
    simulation.await("open");
    moments.pass();
    if (moments.coin()) simulation.signal(SIGSTOP);
    simulation.kill();
    ASSERT_TRUE(push_numbers(own, 1000, i, soon()));
  }
  EXPECT_TRUE(own.close(soon()));
  EXPECT_THAT(trainer.finish(), HasSubstr("torn 0 twice 0"));
  EXPECT_EQ(own.stats().members.size(), 152u);
  // What the last one was filling is noticed in the next wait.
  EXPECT_TRUE(Consumer::open(name, soon()).take(1, Deadline::seconds(0.2)).empty());
  const RingStats stats = own.stats();
  EXPECT_EQ(stats.full + stats.writing + stats.reading, 0) << stats.to_string();
}

// Both sides are stopped and continued at any point: nothing is lost, and nothing comes twice.
TEST(RingProcesses, StopsAtAnyPointLoseNothing) {
  const std::string name = own_name("stops");
  Child simulation(producing(name, 1, OnFull::kWait, 0));
  simulation.await("open");
  Child trainer({"consume", name, "2"});
  trainer.await("open");
  Moments moments(21);
  for (int i = 0; i < 200; ++i) {
    Child& one = moments.coin() ? simulation : trainer;
    one.signal(SIGSTOP);
    moments.pass();
    one.signal(SIGCONT);
    moments.pass();
  }
  simulation.kill();
  EXPECT_THAT(trainer.finish(), HasSubstr("torn 0 twice 0"));
}

// Places in the ring are used again when all have been.
TEST(RingProcesses, MoreMembersComeAndGoThanThereArePlaces) {
  const std::string name = own_name("places");
  const Producer own = Producer::open(name, numbers_schema());
  for (int i = 0; i < 600; ++i) {
    Producer::open(name, numbers_schema()).close();
    Consumer::open(name, soon());
  }
  EXPECT_EQ(own.stats().members.size(), kMaxMembers);
  EXPECT_FALSE(Consumer::open(name, soon()).ended());
}

// Whoever makes the ring may be killed while others come.
TEST(RingProcesses, MakersAreKilledWhileOthersCome) {
  Moments moments(3);
  for (int i = 0; i < 60; ++i) {
    const std::string name = own_name("maker" + std::to_string(i));
    std::optional<Child> maker;
    maker.emplace(producing(name, 1, OnFull::kDropNewest, 0));
    moments.pass();
    std::optional<Child> other;
    other.emplace(producing(name, 2, OnFull::kDropNewest, 0));
    moments.pass();
    maker->kill();
    Consumer trainer = Consumer::open(name, soon());
    const Deadline deadline = soon();
    for (;;) {
      const Batch batch = trainer.take(1, deadline);
      ASSERT_FALSE(deadline.expired());
      // None: the first is gone, and the second has not come yet.
      if (batch.size() == 1 && read_numbers(batch, 0).sender == 2) break;
    }
    other->kill();
  }
}

}  // namespace lockstep::inline v0::insitu::ring_test
