// A process that repeatedly saves checkpoints is killed (SIGKILL) at random moments: the disk
// always has one complete checkpoint, and the next writer can continue.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::killed_writer_mp_test {

namespace fs = std::filesystem;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A checkpoint whose parts all carry the same number, in several megabytes.
Checkpoint numbered(int number) {
  Checkpoint checkpoint;
  const at::Tensor values = at::full({256, 1024}, number, at::kInt);
  checkpoint.model.tensors = {{"a", values}, {"b", values}};
  checkpoint.optimizer = Safetensors{.tensors = {{"0.exp_avg", values}, {"1.exp_avg", values}}};
  checkpoint.ranks.tensors = {{"cpu_generator", at::full({2, 8}, number, at::kInt)}};
  checkpoint.trainer_json = std::to_string(number);
  checkpoint.config_json = "{}";
  checkpoint.files = {{"scaler.json", std::to_string(number)}};
  return checkpoint;
}

// read_checkpoint() compares every checksum.
int number_of(const fs::path& path) {
  const Checkpoint checkpoint = read_checkpoint(path);
  const int number = std::stoi(checkpoint.trainer_json);
  EXPECT_EQ(checkpoint.files.at("scaler.json"), checkpoint.trainer_json);
  for (const Safetensors& part :
       {checkpoint.model, checkpoint.optimizer.whole(), checkpoint.ranks}) {
    for (const auto& [name, tensor] : part.tensors)
      EXPECT_TRUE(tensor.eq(number).all().item<bool>()) << name;
  }
  return number;
}

// Forks a process that calls `write` with the numbers after `last`.
pid_t start_writer(int last, const std::function<void(int)>& write) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int number = last + 1;; ++number) write(number);
  }
  return child;
}

// The same, and kills the process after `life`.
void write_and_kill(int last, microseconds life, const std::function<void(int)>& write) {
  const pid_t child = start_writer(last, write);
  ASSERT_GE(child, 0);
  std::this_thread::sleep_for(life);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

class KilledWriter : public ::testing::Test {
 protected:
  // A forked child has no other threads, and needs none if it computes on its own.
  void SetUp() override { at::set_num_threads(1); }

  // Kills writers for some seconds and calls `check` after each; it returns the number that it
  // found.
  void kill_many(const std::function<void(int)>& write, const std::function<int()>& check) {
    constexpr auto kTime = milliseconds(4000);
    constexpr int kLeast = 20, kMost = 400;
    int last = check();
    // From barely started to several times finished.
    const auto begin = steady_clock::now();
    write(++last);
    const auto once = std::chrono::duration_cast<microseconds>(steady_clock::now() - begin);
    std::mt19937 random(6);
    int64_t longest = 3 * once.count() + 1000;  // of a life, in microseconds
    int in_vain = 0;                            // consecutive writers that saved nothing
    const auto end = steady_clock::now() + kTime;
    const int first = last;
    const auto goes_on = [&](int round) {
      return round < kLeast || steady_clock::now() < end || last == first;
    };
    for (int round = 0; round < kMost && goes_on(round); ++round) {
      std::uniform_int_distribution<int64_t> life(200, longest);
      write_and_kill(last, microseconds(life(random)), write);
      const int found = check();
      ASSERT_GE(found, last);
      in_vain = found == last ? in_vain + 1 : 0;
      // The machine has become slower.
      if (in_vain >= 5) longest += longest / 2, in_vain = 0;
      last = found;
    }
    EXPECT_GT(last, first) << "no writer lived long enough to save once";
  }
};

TEST_F(KilledWriter, LeavesAWholeCheckpoint) {
  const TestDirectory dir;
  const fs::path path = dir / "last";
  write_checkpoint(path, numbered(0));
  kill_many([&](int number) { write_checkpoint(path, numbered(number)); },
            [&] { return number_of(path); });
  write_checkpoint(path, numbered(-1));
  EXPECT_EQ(number_of(path), -1);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"last"});
}

// Best and last always name complete checkpoints, and all kept ones are complete.
TEST_F(KilledWriter, LeavesAWholeSeries) {
  const TestDirectory dir;
  const auto write = [&](int number) {
    write_checkpoint_of_step(dir.path(), number, numbered(number),
                             {.best = number % 3 == 0, .limit = 3});
  };
  write(0);
  kill_many(write, [&] {
    for (const int64_t step : checkpoint_steps(dir.path()))
      EXPECT_EQ(number_of(checkpoint_of_step(dir.path(), step)), step);
    EXPECT_EQ(number_of(dir / "best") % 3, 0);
    return number_of(dir / "last");
  });
  write(3'000'000);
  EXPECT_EQ(number_of(dir / "best"), 3'000'000);
  EXPECT_EQ(checkpoint_steps(dir.path()).size(), 3u);
}

// A reader gets one checkpoint or another while another process saves, and no error.
TEST_F(KilledWriter, ReadersBesideItGetWholeCheckpoints) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", numbered(0));
  const pid_t child =
      start_writer(0, [&](int number) { write_checkpoint(dir / "c", numbered(number)); });
  ASSERT_GE(child, 0);
  int last = 0;
  const auto end = steady_clock::now() + milliseconds(2000);
  while (steady_clock::now() < end && !::testing::Test::HasFailure()) {
    int found = -1;
    EXPECT_NO_THROW(found = number_of(dir / "c"));
    EXPECT_GE(found, last);
    last = found;
  }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_GT(last, 0);
}

}  // namespace lockstep::inline v0::killed_writer_mp_test
