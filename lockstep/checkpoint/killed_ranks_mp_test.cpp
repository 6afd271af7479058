// Ranks that repeatedly save checkpoints together until one or all of them are killed (SIGKILL) at
// a random moment: the disk always has one complete checkpoint, the other ranks end by themselves,
// and the next job can continue.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::killed_ranks_mp_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int64_t kElements = 300'000;

// A checkpoint carries one number throughout; every rank has a part of each tensor, or a whole
// tensor.
Checkpoint share_of(int rank, int number) {
  Checkpoint share;
  share.model.tensors = {
      {"weight" + std::to_string(rank), at::full({kElements}, number, at::kInt)}};
  // Every third checkpoint is of a divided model: each rank has columns of a matrix.
  if (number % 3 == 0) {
    const int64_t columns = kElements / 100 / kRanks;
    const TensorBox box{{0, rank * columns}, {100, (rank + 1) * columns}};
    share.model_slices.tensors.emplace("matrix",
                                       slice_of({100, columns * kRanks}, {columns * kRanks, 1}, 0,
                                                at::full({100 * columns}, number, at::kInt), box));
  }
  share.optimizer.metadata = {{"number", std::to_string(number)}};
  const int64_t part = kElements / kRanks;
  share.optimizer.tensors["0.exp_avg"] =
      slice_of({kElements}, {1}, rank * part, at::full({part}, number, at::kInt));
  share.ranks.tensors = {{"cpu_generator", at::full({kRanks, 8}, number, at::kInt)}};
  share.trainer_json = std::to_string(number);
  share.config_json = "{}";
  return share;
}

// read_checkpoint() compares every checksum. 0: there is none yet.
int number_of(const fs::path& path) {
  if (!checkpoint_exists(path)) return 0;
  const Checkpoint checkpoint = read_checkpoint(path);
  const int number = std::stoi(checkpoint.trainer_json);
  EXPECT_EQ(checkpoint.optimizer.metadata.at("number"), checkpoint.trainer_json);
  EXPECT_EQ(checkpoint.model.tensors.size(),
            static_cast<size_t>(kRanks + (number % 3 == 0 ? 1 : 0)));
  for (const Safetensors& part : {checkpoint.model, checkpoint.optimizer.whole()}) {
    for (const auto& [name, tensor] : part.tensors)
      EXPECT_TRUE(tensor.eq(number).all().item<bool>()) << name;
  }
  return number;
}

// Saves the numbers after `last` until a rank is killed. Every other one in the background.
[[noreturn]] void save_on(const fs::path& path, const std::string& store, int rank, int last) {
  try {
    Communicator comm = init({.backend = "shm",
                              .init_method = "file://" + store,
                              .rank = rank,
                              .world_size = kRanks,
                              .timeout = std::chrono::seconds(8)});
    CheckpointWriter writer(comm);
    for (int number = last + 1;; ++number) {
      const bool aside = number % 2 == 0;
      writer.start(path, share_of(rank, number), {.snapshot = aside});
      if (!aside) writer.wait();
    }
  } catch (const std::exception&) {
    ::_exit(3);  // a peer was lost
  }
}

TEST(KilledRanks, LeaveAWholeCheckpoint) {
  at::set_num_threads(1);  // a forked child has no other threads
  const TestDirectory dir;
  const fs::path path = dir / "c";
  std::mt19937 random(14);
  constexpr int kRounds = 50;
  int last = 0, saved = 0;
  int64_t longest = 250;  // milliseconds of a life
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    const std::string store = dir / ("store" + std::to_string(round));
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) save_on(path, store, rank, last);
      ranks.push_back(child);
    }
    std::this_thread::sleep_for(
        milliseconds(std::uniform_int_distribution<int64_t>(20, longest)(random)));
    const auto killed = std::chrono::steady_clock::now();
    const int victim = std::uniform_int_distribution<int>(0, kRanks)(random);
    // KRanks: kills all of them, as if the launcher had ended.
    for (int rank = 0; rank < kRanks; ++rank) {
      if (victim == kRanks || rank == victim) ::kill(ranks[static_cast<size_t>(rank)], SIGKILL);
    }
    for (const pid_t child : ranks) ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_LT(steady_clock::now() - killed, std::chrono::seconds(20)) << "round " << round;
    const int found = number_of(path);
    EXPECT_GE(found, last) << "round " << round << ", killed " << victim;
    saved += found > last ? 1 : 0;
    // The machine is slower than assumed.
    if (round % 10 == 9 && saved < round / 3) longest *= 2;
    last = found;
    fs::remove(store);
  }
  EXPECT_GT(saved, 5) << "hardly a job lived long enough to save";
  for (const std::string& name : dir.names())
    EXPECT_TRUE(name == "c" || name == "c.partial") << name << " is left";
}

}  // namespace
}  // namespace lockstep::inline v0::killed_ranks_mp_test
