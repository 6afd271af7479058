#include "lockstep/comm/groups/reformation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0::reformation_test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline patience() {
  return Deadline::after(seconds(30));
}

void each(int size, const std::function<void(int rank)>& fn) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back(fn, r);
  for (std::thread& thread : threads) thread.join();
}

// A connection that needs all ranks.
void meet(Store& store, int size, Deadline deadline) {
  store_barrier(store, "all", size, deadline);
}

TEST(Reformation, AllRanksMeetAgainAndAgain) {
  const auto store = std::make_shared<HashStore>();
  each(4, [&](int rank) {
    Reformation reformation(store, rank, 4, "0");
    for (int64_t generation = 1; generation <= 3; ++generation) {
      int64_t seen = 0;
      const int64_t number = reformation.form(
          [&](int64_t attempt, const std::shared_ptr<Store>& place, Deadline limit) {
            seen = attempt;
            meet(*place, 4, limit);
          },
          patience());
      EXPECT_EQ(number, generation);
      EXPECT_EQ(seen, number);
    }
  });
}

TEST(Reformation, ANewProcessOfARankEndsTheAttemptThatItsFormerOneDiedIn) {
  const auto store = std::make_shared<HashStore>();
  std::atomic<bool> dead{false};
  each(3, [&](int rank) {
    if (rank == 2) {
      struct Death {};
      try {
        Reformation(store, 2, 3, "0")
            .form([&](int64_t, const std::shared_ptr<Store>&, Deadline) { throw Death(); },
                  patience());
        ADD_FAILURE();
      } catch (const Death&) {
        dead = true;
      }
    }
    const auto start = std::chrono::steady_clock::now();
    Reformation reformation(store, rank, 3, rank == 2 ? "1" : "0");
    EXPECT_EQ(reformation.form([&](int64_t, const std::shared_ptr<Store>& place,
                                   Deadline limit) { meet(*place, 3, limit); },
                               patience()),
              2);
    EXPECT_TRUE(dead);
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2))
        << "the waits in the store end with the attempt";
  });
}

TEST(Reformation, AnAttemptInWhichOneCannotConnectIsGivenUpByAll) {
  const auto store = std::make_shared<HashStore>();
  each(3, [&](int rank) {
    Reformation reformation(store, rank, 3, "0");
    EXPECT_EQ(reformation.form(
                  [&](int64_t attempt, const std::shared_ptr<Store>& place, Deadline limit) {
                    if (rank == 1 && attempt < 3) throw PeerLost("no line to rank 0", 0);
                    meet(*place, 3, limit);
                  },
                  patience()),
              3);
  });
}

TEST(Reformation, WhoDoesNotComeIsNamed) {
  const auto store = std::make_shared<HashStore>();
  each(3, [&](int rank) {
    if (rank == 1) return;
    try {
      Reformation(store, rank, 3, "0")
          .form([](int64_t, const std::shared_ptr<Store>&, Deadline) { ADD_FAILURE(); },
                Deadline::after(std::chrono::milliseconds(300)));
      ADD_FAILURE();
    } catch (const Timeout& error) {
      // The first rank that gives up makes the other one start an attempt of its own.
      EXPECT_THAT(error.what(), HasSubstr("1"));
      EXPECT_THAT(error.what(), HasSubstr("did not come within 0.3 s"));
    }
  });
}

TEST(Reformation, WhoHasEndedIsNotWaitedFor) {
  const auto store = std::make_shared<HashStore>();
  std::atomic<bool> ended{false};
  each(3, [&](int rank) {
    if (rank == 1) return;
    if (rank == 2) {  // while the other one waits for it
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ended = true;
      return;
    }
    try {
      Reformation(store, rank, 3, "0", [&](int other) {
        return other == 2 && ended;
      }).form([](int64_t, const std::shared_ptr<Store>&, Deadline) { ADD_FAILURE(); }, patience());
      ADD_FAILURE();
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 has ended, and will not come"));
    }
  });
}

TEST(Reformation, AnOptionThatIsWrongIsNotTriedAgain) {
  const auto store = std::make_shared<HashStore>();
  Reformation reformation(store, 0, 1, "0");
  EXPECT_THROW(reformation.form([](int64_t, const std::shared_ptr<Store>&,
                                   Deadline) { throw InvalidArgument("no such backend"); },
                                patience()),
               InvalidArgument);
}

// Processes of a job that die at random operations of the store, and are replaced at once.
class Dying final : public Store {
 public:
  struct Death {};
  Dying(std::shared_ptr<Store> base, int operations) : base_(std::move(base)), left_(operations) {}

  void set(const std::string& key, const std::string& value) override {
    live();
    base_->set(key, value);
    live();
  }
  std::string get(const std::string& key, Deadline deadline) override {
    live();
    return base_->get(key, deadline);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    live();
    return base_->try_get(key);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    live();
    const int64_t sum = base_->add(key, delta);
    live();
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    live();
    std::string value = base_->compare_set(key, expected, desired);
    live();
    return value;
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    live();
    base_->wait(keys, deadline);
  }
  bool remove(const std::string& key) override { return base_->remove(key); }

 private:
  void live() {
    if (left_ > 0 && --left_ == 0) throw Death();
  }
  std::shared_ptr<Store> base_;
  int left_;  // 0: forever
};

// A job whose ranks form, work, and form again after one of them died, until all are in their last
// lives, in which they do not die.
class MortalJob {
 public:
  static constexpr int kSize = 3;
  static constexpr int kLastLife = 3;

  // The generation in which this rank's last life worked.
  int64_t run_rank(int rank, unsigned seed) {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(rank));
    while (true) {
      const int life = lives_[static_cast<size_t>(rank)];
      const int operations =
          life < kLastLife ? std::uniform_int_distribution<int>(1, 30)(random) : 0;
      try {
        Reformation reformation(std::make_shared<Dying>(store_, operations), rank, kSize,
                                std::to_string(life));
        while (true) {
          const int64_t number = reformation.form(
              [&](int64_t attempt, const std::shared_ptr<Store>& place, Deadline limit) {
                enter(attempt, rank, life);
                meet(*place, kSize, limit);
              },
              patience());
          if (work(number)) return number;
        }
      } catch (const Dying::Death&) {
        ++lives_[static_cast<size_t>(rank)];
      }
    }
  }

 private:
  using Lives = std::map<int, int>;  // by rank

  void enter(int64_t attempt, int rank, int life) {
    const MutexLock lock(mutex_);
    const auto [it, added] = joined_[attempt].emplace(rank, life);
    EXPECT_TRUE(added) << "two processes of rank " << rank << " in attempt " << attempt;
  }

  // Acts like a collective: false where a rank of the generation is dead.
  bool work(int64_t number) {
    Lives lives;
    {
      const MutexLock lock(mutex_);
      lives = joined_[number];
      ++arrived_[number];
    }
    EXPECT_EQ(lives.size(), static_cast<size_t>(kSize));
    bool last = true;
    for (const auto& [rank, life] : lives) last = last && life == kLastLife;
    while (true) {
      for (const auto& [rank, life] : lives) {
        if (lives_[static_cast<size_t>(rank)] != life) return false;
      }
      {
        const MutexLock lock(mutex_);
        if (last && arrived_[number] == kSize) return true;
      }
      if (!last) return false;  // more are to die
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
  std::array<std::atomic<int>, kSize> lives_ = {};
  Mutex mutex_;
  std::map<int64_t, Lives> joined_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<int64_t, int> arrived_ LOCKSTEP_GUARDED_BY(mutex_);
};

TEST(Reformation, DeathsAtAnyMomentLeadToOneGeneration) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    MortalJob job;
    Mutex mutex;
    std::set<int64_t> last;
    each(MortalJob::kSize, [&](int rank) {
      const int64_t number = job.run_rank(rank, seed);
      const MutexLock lock(mutex);
      last.insert(number);
    });
    EXPECT_EQ(last.size(), 1U);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::reformation_test
