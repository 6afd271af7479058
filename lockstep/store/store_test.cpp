// The behaviour that all stores share, tested with each of them.
#include "lockstep/store/store.h"
#include "lockstep/core/internal/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0 {
namespace store_test {

using testing::HasSubstr;

// Makes a view of one store for each participant.
struct Service {
  virtual ~Service() = default;
  virtual std::shared_ptr<Store> join() = 0;
};

struct Hash : Service {
  std::shared_ptr<Store> join() override { return store; }
  std::shared_ptr<Store> store = std::make_shared<HashStore>();
};

struct Tcp : Service {
  std::shared_ptr<Store> join() override {
    return std::make_shared<TcpStore>(server.address(), secret, Deadline::seconds(10));
  }
  Secret secret = Secret::generate();
  TcpStoreServer server{{"127.0.0.1", 0}, secret};
};

// All participants share one connection.
struct TcpShared : Tcp {
  std::shared_ptr<Store> join() override {
    if (!store) store = Tcp::join();
    return store;
  }
  std::shared_ptr<Store> store;
};

struct File : Service {
  std::shared_ptr<Store> join() override { return std::make_shared<FileStore>(folder / "store"); }
  TestDirectory folder;
};

struct Prefix : Tcp {
  std::shared_ptr<Store> join() override {
    return std::make_shared<PrefixStore>("job/7", Tcp::join());
  }
};

struct Kind {
  const char* name;
  std::unique_ptr<Service> (*make)();
};

template <typename T>
std::unique_ptr<Service> make() {
  return std::make_unique<T>();
}

class EveryStore : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Service> service_ = GetParam().make();
  std::shared_ptr<Store> store_ = service_->join();
};

INSTANTIATE_TEST_SUITE_P(Stores, EveryStore,
                         testing::Values(Kind{"hash", make<Hash>}, Kind{"tcp", make<Tcp>},
                                         Kind{"tcp_shared", make<TcpShared>},
                                         Kind{"file", make<File>}, Kind{"prefix", make<Prefix>}),
                         [](const auto& info) { return info.param.name; });

Deadline soon() {
  return Deadline::seconds(20);
}

void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EveryStore, KeepsBytes) {
  const std::string bytes("\0\xff\n=binary", 10);
  store_->set(bytes, bytes);
  EXPECT_EQ(store_->get(bytes, soon()), bytes);
  store_->set(bytes, "");
  EXPECT_EQ(store_->get(bytes, soon()), "");
  EXPECT_EQ(store_->try_get(bytes), "");
}

TEST_P(EveryStore, KeepsLargeValues) {
  std::string value(8 << 20, 'x');
  for (size_t i = 0; i < value.size(); i += 4099) value[i] = static_cast<char>(i);
  store_->set("large", value);
  EXPECT_TRUE(service_->join()->get("large", soon()) == value);
}

TEST_P(EveryStore, TryGetDoesNotWait) {
  EXPECT_EQ(store_->try_get("absent"), std::nullopt);
  store_->set("present", "1");
  EXPECT_EQ(store_->try_get("present"), "1");
}

TEST_P(EveryStore, OfferAndPeekAreSetAndTryGet) {
  EXPECT_EQ(store_->peek("k", soon()), std::nullopt);
  store_->offer("k", "1", soon());
  EXPECT_EQ(service_->join()->peek("k", soon()), "1");
  EXPECT_EQ(store_->try_get("k"), "1");
}

TEST_P(EveryStore, RemoveSaysWhetherTheKeyExisted) {
  store_->set("k", "v");
  EXPECT_TRUE(store_->remove("k"));
  EXPECT_FALSE(store_->remove("k"));
  EXPECT_EQ(store_->try_get("k"), std::nullopt);
}

TEST_P(EveryStore, AddCounts) {
  EXPECT_EQ(store_->add("n", 5), 5);
  EXPECT_EQ(store_->add("n", -7), -2);
  EXPECT_EQ(store_->get("n", soon()), "-2");
  store_->set("n", "40");
  EXPECT_EQ(store_->add("n", 2), 42);
}

TEST_P(EveryStore, AddRefusesWhatIsNoInteger) {
  store_->set("text", "many");
  EXPECT_THROW(store_->add("text", 1), StoreError);
  EXPECT_EQ(store_->get("text", soon()), "many");
  store_->set("top", "9223372036854775807");
  EXPECT_THROW(store_->add("top", 1), StoreError);
}

TEST_P(EveryStore, CompareSet) {
  EXPECT_EQ(store_->compare_set("k", "other", "v"), "") << "absent counts as empty";
  EXPECT_EQ(store_->try_get("k"), std::nullopt);
  EXPECT_EQ(store_->compare_set("k", "", "first"), "first");
  EXPECT_EQ(store_->compare_set("k", "", "second"), "first");
  EXPECT_EQ(store_->compare_set("k", "first", "second"), "second");
}

TEST_P(EveryStore, LimitsOfKeysAndValues) {
  EXPECT_THROW(store_->set("", "v"), InvalidArgument);
  EXPECT_THROW(store_->get("", soon()), InvalidArgument);
  EXPECT_THROW(store_->try_get(std::string(4097, 'k')), InvalidArgument);
  EXPECT_THROW(store_->set("k", std::string((64 << 20) + 1, 'v')), InvalidArgument);
  store_->set(std::string(4000, 'k'), "v");
  EXPECT_EQ(store_->get(std::string(4000, 'k'), soon()), "v");
}

TEST_P(EveryStore, GetWaitsForTheKey) {
  auto other = service_->join();
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    other->set("late", "here");
  });
  EXPECT_EQ(store_->get("late", soon()), "here");
  setter.join();
}

TEST_P(EveryStore, WaitsEndAtTheDeadlineAndNameTheKey) {
  const auto message = [&](auto call) -> std::string {
    try {
      call();
    } catch (const Timeout& error) {
      return error.what();
    }
    return "no time-out";
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(message([&] { store_->get("never", Deadline::seconds(0.05)); }),
              testing::AllOf(HasSubstr("never"), HasSubstr("0.05 s")));
  store_->set("there", "");
  const std::vector<std::string> keys{"there", "missing"};
  EXPECT_THAT(message([&] { store_->wait(keys, Deadline::seconds(0.05)); }), HasSubstr("missing"));
  EXPECT_THAT(message([&] { store_->get("never", Deadline::seconds(0)); }), HasSubstr("never"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_EQ(store_->get("there", Deadline::seconds(0)), "") << "a key that exists needs no time";
}

TEST_P(EveryStore, WaitsForSeveralKeysInAnyOrder) {
  const std::vector<std::string> keys{"a", "b", "c"};
  auto other = service_->join();
  std::thread setter([&] {
    for (const char* key : {"c", "a", "b"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      other->set(key, "");
    }
  });
  store_->wait(keys, soon());
  for (const std::string& key : keys) EXPECT_TRUE(store_->try_get(key).has_value());
  setter.join();
  store_->wait({}, soon());
}

TEST_P(EveryStore, OneWaiterDoesNotHoldUpOthers) {
  auto waiter = service_->join();
  std::thread waiting([&] { waiter->get("end", soon()); });
  for (int i = 0; i < 50; ++i) waiter->add("n", 1);
  EXPECT_EQ(store_->get("n", soon()), "50");
  store_->set("end", "");
  waiting.join();
}

TEST_P(EveryStore, CountsOfManyThreadsAddUp) {
  constexpr int kThreads = 8, kRounds = 50;
  std::vector<std::shared_ptr<Store>> stores;
  for (int i = 0; i < kThreads; ++i) stores.push_back(service_->join());
  std::atomic<int> winners{0};
  in_threads(kThreads, [&](int i) {
    for (int round = 0; round < kRounds; ++round) stores[static_cast<size_t>(i)]->add("total", 1);
    const std::string me = "thread " + std::to_string(i);
    if (stores[static_cast<size_t>(i)]->compare_set("winner", "", me) == me) ++winners;
  });
  EXPECT_EQ(store_->add("total", 0), kThreads * kRounds);
  EXPECT_EQ(winners, 1);
}

TEST_P(EveryStore, BarrierMeets) {
  constexpr int kThreads = 6;
  std::vector<std::shared_ptr<Store>> stores;
  for (int i = 0; i < kThreads; ++i) stores.push_back(service_->join());
  std::atomic<int> arrived{0}, early{0};
  in_threads(kThreads, [&](int i) {
    for (int round = 0; round < 3; ++round) {
      ++arrived;
      store_barrier(*stores[static_cast<size_t>(i)], "meet" + std::to_string(round), kThreads,
                    soon());
      if (arrived < (round + 1) * kThreads) ++early;
    }
  });
  EXPECT_EQ(early, 0);
}

TEST_P(EveryStore, BarrierSaysHowManyArrived) {
  try {
    store_barrier(*store_, "meet", 3, Deadline::seconds(0.02));
    FAIL() << "no time-out";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("'meet': 1 of 3"));
  }
  store_barrier(*store_, "alone", 1, soon());
  EXPECT_THROW(store_barrier(*store_, "alone", 1, soon()), StoreError)
      << "a name serves one meeting";
  EXPECT_THROW(store_barrier(*store_, "none", 0, soon()), InvalidArgument);
}

TEST(PrefixStore, KeepsUsersApart) {
  auto base = std::make_shared<HashStore>();
  PrefixStore one("one", base), two("two", base);
  one.set("k", "1");
  EXPECT_EQ(two.try_get("k"), std::nullopt);
  EXPECT_EQ(base->try_get("one/k"), "1");
  EXPECT_THROW(PrefixStore("p", nullptr), InvalidArgument);
}

}  // namespace store_test
}  // namespace lockstep::inline v0
