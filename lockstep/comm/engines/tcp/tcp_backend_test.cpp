#include "lockstep/comm/engines/tcp/tcp_backend.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>

#include "lockstep/comm/abort_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/bitwise_sum.h"
#include "lockstep/testing/engine_threads.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_suite.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::inline v0::tcp_backend_test {
namespace {

using ::testing::HasSubstr;

struct Ranks {
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);
  tcp::ScheduleSizes sizes = {};
};

// Ranks as threads of this process, each with a TcpBackend of its own over the loopback interface.
void run_tcp(int size, const std::function<void(Communicator&, TcpBackend&)>& fn,
             const Ranks& options = {}) {
  HashStore store;
  const auto make = [&](int rank) {
    return std::pair(make_tcp_backend(store, {.rank = rank, .size = size, .sizes = options.sizes},
                                      Deadline::after(options.timeout)),
                     Topology{rank, size, rank, size, 0});
  };
  testing::run_engines(size, make, fn, options.timeout);
}

class TcpOperations : public ::testing::TestWithParam<std::tuple<int, tcp::ScheduleSizes>> {};

TEST_P(TcpOperations, AgreeWithTheOracle) {
  const auto& [size, sizes] = GetParam();
  testing::expect_suite(
      [&](const auto& fn) {
        run_tcp(size, [&](Communicator& comm, TcpBackend&) { fn(comm); }, {.sizes = sizes});
      },
      [](const Communicator& comm) {
        return testing::SuiteOptions{.long_bytes = 100'003, .every_root = comm.size() < 4};
      });
}

// With the second sizes long tensors take many pieces and blocks. Under a sanitizer three ranks
// cover all of the code.
std::vector<std::tuple<int, tcp::ScheduleSizes>> groups_of_operations() {
  const tcp::ScheduleSizes usual, small{256, 1000, 9000};
  if (kSanitized && !testing::long_tests()) return {{2, usual}, {3, small}};
  std::vector<std::tuple<int, tcp::ScheduleSizes>> all;
  for (const int size : {1, 2, 3, 4}) {
    all.emplace_back(size, usual);
    all.emplace_back(size, small);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpOperations, ::testing::ValuesIn(groups_of_operations()));

// Sums of arbitrary values are those of one process that adds in rank order, whatever the size.
TEST(TcpBackend, AddsInRankOrderWhateverTheSize) {
  for (const int64_t count : {int64_t{5}, int64_t{20'000}, int64_t{3'000'000}}) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 3; ++r) inputs.push_back(at::randn({count}).mul_(r == 1 ? 1e6 : 1));
    const at::Tensor expected = inputs[0].add(inputs[1]).add(inputs[2]);
    run_tcp(3, [&](Communicator& comm, TcpBackend&) {
      for (int turn = 0; turn < 2; ++turn) {
        const at::Tensor t = inputs[comm.rank()].clone();
        comm.all_reduce(t);
        EXPECT_TRUE(t.equal(expected)) << count;
        const at::Tensor u = inputs[comm.rank()].clone();
        comm.reduce(u, 1);
        if (comm.rank() == 1) {
          EXPECT_TRUE(u.equal(expected)) << count;
        }
      }
    });
  }
}

// With whole tensors and with many pieces, whichever rank is late.
TEST(TcpBackend, ReductionsRepeatBitForBit) {
  constexpr int kSize = 3;
  for (const tcp::ScheduleSizes& sizes :
       {tcp::ScheduleSizes{}, tcp::ScheduleSizes{256, 1000, 9000}}) {
    for (const int64_t count : {5, 200, 5000}) {
      const testing::BitwiseSum sum(kSize, count);
      run_tcp(kSize,
              [&](Communicator& comm, TcpBackend&) {
                for (int late = -1; late < kSize; ++late) {
                  if (comm.rank() == late)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  EXPECT_EQ(sum.check(comm), "") << "rank " << late << " late";
                }
              },
              {.sizes = sizes});
    }
  }
}

// Another thread aborts while the rank waits for a message that never arrives.
TEST(TcpBackend, AnotherThreadMayAbortWhatARankWaitsFor) {
  AbortedWait wait;
  run_tcp(3, [&](Communicator& comm, TcpBackend&) { wait.run(comm); });
}

TEST(TcpBackend, NonBlockingOperationsOverlapAndFinishInAnyOrder) {
  run_tcp(3, [](Communicator& comm, TcpBackend&) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({i % 3 == 0 ? 200'000 + i : 10 + i}, comm.rank() + i));
      works.push_back(comm.iall_reduce(tensors.back()));
    }
    for (int i = 19; i >= 0; --i) works[i].wait();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(tensors[i].eq(3 + 3 * i).all().item<bool>()) << i;
  });
}

TEST(TcpBackend, AgreesWhereRanksAreFarApart) {
  testing::expect_apart(
      [](const auto& fn) { run_tcp(3, [&](Communicator& comm, TcpBackend&) { fn(comm); }); },
      {.in_a_row = kSanitized ? 10'000 : 100'000});
}

// The root is far ahead of the others, which keep data that arrives too early.
TEST(TcpBackend, ARootMayRunAhead) {
  run_tcp(3, [](Communicator& comm, TcpBackend&) {
    if (comm.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int i = 0; i < 2000; ++i) {
      const at::Tensor t = at::full({100}, comm.rank() == 0 ? i : -1);
      comm.broadcast(t, 0);
      ASSERT_EQ(t[99].item<float>(), i);
    }
  });
}

TEST(TcpBackend, MessagesBySizeAndTagOutOfOrder) {
  run_tcp(2, [](Communicator& comm, TcpBackend&) {
    const int64_t sizes[] = {0, 1, 8192, 8193, 1'000'000};
    if (comm.rank() == 0) {
      std::vector<Work> works;
      std::vector<at::Tensor> keep;
      for (int i = 0; i < 5; ++i) {
        keep.push_back(at::arange(sizes[i], at::kFloat).add_(i));
        works.push_back(comm.isend(keep.back(), 1, i));
      }
      for (Work& work : works) work.wait();
      // Collectives overtake waiting messages.
      Work late = comm.isend(keep[4], 1, 9);
      comm.barrier();
      late.wait();
    } else {
      for (int i = 4; i >= 0; --i) {
        const at::Tensor t = at::zeros({sizes[i]});
        comm.recv(t, 0, i);
        EXPECT_TRUE(t.equal(at::arange(sizes[i], at::kFloat).add_(i))) << i;
      }
      comm.barrier();
      const at::Tensor t = at::zeros({sizes[4]});
      comm.recv(t, 0, 9);
      EXPECT_EQ(t[5].item<float>(), 9.0f);
    }
    // To itself: a small message before its receive, and a large one after.
    const at::Tensor small = at::full({3}, 7.0), large = at::full({100'000}, 8.0);
    comm.send(small, comm.rank(), 1);
    const at::Tensor a = at::zeros({3}), b = at::zeros({100'000});
    Work receive = comm.irecv(b, comm.rank(), 2);
    comm.send(large, comm.rank(), 2);
    receive.wait();
    comm.recv(a, comm.rank(), 1);
    EXPECT_TRUE(a.equal(small));
    EXPECT_TRUE(b.equal(large));
  });
}

TEST(TcpBackend, ManySmallCollectivesOfAllKinds) {
  run_tcp(3, [](Communicator& comm, TcpBackend&) {
    for (int i = 0; i < 1000; ++i) {
      const at::Tensor t = at::full({4}, comm.rank() + i);
      comm.all_reduce(t);
      ASSERT_EQ(t[3].item<float>(), 3 * i + 3);
      comm.barrier();
      ASSERT_EQ(comm.all_gather(at::full({1}, comm.rank())).sum().item<float>(), 3);
    }
  });
}

TEST(TcpBackend, CountsThePayload) {
  run_tcp(2, [](Communicator& comm, TcpBackend& backend) {
    comm.all_reduce(at::zeros({1'000'000}));
    EXPECT_EQ(backend.payload_sent(1 - comm.rank()), 4'000'000u);
  });
}

TEST(TcpBackend, EveryThreadGetsTheRightErrorInTime) {
  int tried = 0;
  for (const testing::Fault& fault : testing::faults()) {
    if (fault.needs_process) continue;
    ++tried;
    run_tcp(testing::kFaultSize,
            [&](Communicator& comm, TcpBackend&) {
              EXPECT_EQ(testing::run_fault(comm, fault, {}), "")
                  << fault.name << ", rank " << comm.rank();
            },
            {.timeout = testing::fault_timeout(fault)});
  }
  EXPECT_GE(tried, 10);
}

// Unauthenticated peers that connect while the ranks gather: a silent one, a million random bytes,
// a wrong secret.
TEST(TcpBackend, StrangersAreRefusedAndTheJobGoesOn) {
  HashStore store;
  std::vector<std::thread> ranks;
  const auto join = [&](int rank) {
    auto backend = make_tcp_backend(store, {.rank = rank, .size = 2}, Deadline::seconds(30));
    Communicator comm(std::move(backend), Topology{rank, 2, rank, 2, 0}, {});
    const at::Tensor t = at::full({3}, rank + 1.0);
    comm.all_reduce(t);
    EXPECT_EQ(t[0].item<double>(), 3.0);
  };
  ranks.emplace_back(join, 0);
  const HostPort door = parse_host_port(store.get("tcp/address/0", Deadline::seconds(10)));
  EXPECT_EQ(door.host, "127.0.0.1");
  const UniqueFd silent = connect_tcp(door, Deadline::seconds(5));
  const UniqueFd loud = connect_tcp(door, Deadline::seconds(5));
  const std::string noise = random_bytes(1'000'000);
  EXPECT_THROW(
      {
        write_exact(loud.get(), noise.data(), noise.size(), Deadline::seconds(5));
        char answer = 0;
        read_exact(loud.get(), &answer, 1, Deadline::seconds(5));
      },
      PeerLost);
  const UniqueFd liar = connect_tcp(door, Deadline::seconds(5));
  EXPECT_THROW(wire::authenticate_as_client(liar.get(), Secret::from_text("wrong"), "tcp rank 0",
                                            Deadline::seconds(5)),
               StoreError);
  const UniqueFd replayer = connect_tcp(door, Deadline::seconds(5));
  EXPECT_THROW(wire::authenticate_as_client(
                   replayer.get(), Secret::from_text(store.get("tcp/secret", Deadline::seconds(5))),
                   "store", Deadline::seconds(5)),
               StoreError);
  ranks.emplace_back(join, 1);
  for (std::thread& rank : ranks) rank.join();
}

// A peer that knows the secret and sends what no rank sends, and a crowd that sends nothing.
TEST(TcpBackend, ALiarAndAStormOfStrangersDoNotKeepTheRanksApart) {
  HashStore store;
  std::vector<std::thread> ranks;
  const auto join = [&](int rank) {
    auto backend = make_tcp_backend(store, {.rank = rank, .size = 2}, Deadline::seconds(60));
    Communicator comm(std::move(backend), Topology{rank, 2, rank, 2, 0}, {});
    const at::Tensor t = at::full({3}, rank + 1.0);
    comm.all_reduce(t);
    EXPECT_EQ(t[0].item<double>(), 3.0);
  };
  ranks.emplace_back(join, 0);
  const HostPort door = parse_host_port(store.get("tcp/address/0", Deadline::seconds(60)));
  const Secret secret = Secret::from_text(store.get("tcp/secret", Deadline::seconds(60)));
  for (const int32_t rank : {0, 2, -1}) {
    const UniqueFd liar = connect_tcp(door, Deadline::seconds(60));
    wire::authenticate_as_client(liar.get(), secret, "tcp rank 0", Deadline::seconds(60));
    const std::array<int32_t, 4> greeting{2, 0x01020304, rank, 2};
    write_exact(liar.get(), greeting.data(), sizeof greeting, Deadline::seconds(60));
    char answer = 0;
    EXPECT_THROW(read_exact(liar.get(), &answer, 1, Deadline::seconds(60)), PeerLost) << rank;
  }
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(connect_tcp(door, Deadline::seconds(60)));
  ranks.emplace_back(join, 1);
  for (std::thread& rank : ranks) rank.join();
}

TEST(TcpBackend, ARankThatDoesNotComeIsNamed) {
  HashStore store;
  try {
    make_tcp_backend(store, {.rank = 0, .size = 2}, Deadline::seconds(0.2));
    ADD_FAILURE() << "no Timeout";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("not connected: rank 1"));
  }
}

}  // namespace
}  // namespace lockstep::inline v0::tcp_backend_test
