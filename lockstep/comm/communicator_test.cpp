#include "lockstep/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/abort_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/bitwise_sum.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Communicator, ShapesFollowTheHeader) {
  testing::run_threads(3, [](Communicator& comm) {
    EXPECT_EQ(comm.all_gather(at::zeros({2, 5})).sizes(), (std::vector<int64_t>{6, 5}));
    EXPECT_EQ(comm.all_gather(at::full({}, 1.0)).sizes(), (std::vector<int64_t>{3}));
    EXPECT_EQ(comm.reduce_scatter(at::zeros({6, 2})).sizes(), (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(comm.all_to_all(at::zeros({3, 4})).sizes(), (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(comm.all_gatherv(at::zeros({comm.rank(), 4})).sizes(), (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(comm.all_gather(at::zeros({0, 7})).sizes(), (std::vector<int64_t>{0, 7}));
    EXPECT_EQ(comm.gather(at::zeros({2}), 1).defined(), comm.rank() == 1);
    EXPECT_EQ(comm.device(), at::Device(at::kCPU));
    EXPECT_EQ(comm.world_size(), 3);
  });
}

TEST(Communicator, SharedMemoryIsOneForAllRanks) {
  testing::run_threads(3, [](Communicator& comm) {
    ASSERT_TRUE(comm.capabilities().shared_memory);
    for (int turn = 0; turn < 3; ++turn) {
      const at::Tensor all = comm.shared_empty({3, 5}, at::kFloat);
      EXPECT_EQ(all.sum().item<float>(), 0);
      comm.barrier();
      all[comm.rank()].fill_(comm.rank() + 1);
      comm.barrier();
      EXPECT_EQ(all.sum().item<float>(), 30);
      comm.barrier();  // before another rank's next turn could reuse it
    }
    EXPECT_EQ(comm.shared_empty({2, 0}, at::kFloat).numel(), 0);
    EXPECT_THAT(message_of<InvalidArgument>([&] { comm.shared_empty({-1}, at::kFloat); }),
                HasSubstr("shared_empty: a dimension is negative"));
    EXPECT_THAT(message_of<Mismatch>([&] { comm.shared_empty({comm.rank() + 1}, at::kByte); }),
                HasSubstr("shared_empty, 1 bytes"));
  });
}

TEST(Communicator, CountsPayloadByOperation) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto calls = [&](Op op) { return comm.stats().of(op).calls; };
    const auto bytes = [&](Op op) { return comm.stats().of(op).bytes; };
    comm.all_reduce(at::zeros({10}));
    comm.iall_reduce(at::zeros({10, 2}).t(), ReduceOp::kMax).wait();  // through a copy
    EXPECT_EQ(calls(Op::kAllReduce), 2u);
    EXPECT_EQ(bytes(Op::kAllReduce), 40u + 80u);
    comm.all_gather(at::zeros({3}, at::kDouble));
    EXPECT_EQ(bytes(Op::kAllGather), 48u);
    comm.reduce_scatter(at::zeros({4, 2}, at::kHalf));
    EXPECT_EQ(bytes(Op::kReduceScatter), 16u);
    comm.all_to_all(at::zeros({2, 5}, at::kByte));
    EXPECT_EQ(bytes(Op::kAllToAll), 10u);
    comm.broadcast(at::zeros({7}, at::kByte), 1);
    EXPECT_EQ(bytes(Op::kBroadcast), 7u);
    comm.barrier();
    EXPECT_EQ(calls(Op::kBarrier), 1u);
    EXPECT_EQ(bytes(Op::kBarrier), 0u);
    EXPECT_EQ(comm.stats().collectives, 7u);
    if (comm.rank() == 0)
      comm.send(at::zeros({9}), 1);
    else
      comm.recv(at::zeros({9}), 0);
    EXPECT_EQ(bytes(comm.rank() == 0 ? Op::kSend : Op::kRecv), 36u);
    EXPECT_EQ(comm.stats().collectives, 7u);
  });
}

// A tensor on another device than the engine's is copied there and back.
TEST(Communicator, CarriesCudaTensorsByCopies) {
  if (c10::impl::device_guard_impl_registry[static_cast<size_t>(at::kCUDA)].load() == nullptr)
    GTEST_SKIP() << "no CUDA in this libtorch";
  if (c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor sum = at::full({3}, comm.rank() + 1.0).to(at::kCUDA);
    comm.all_reduce(sum);
    EXPECT_TRUE(at::equal(sum.cpu(), at::full({3}, 3.0)));
    const at::Tensor all = comm.all_gather(at::full({2}, comm.rank()).to(at::kCUDA));
    EXPECT_TRUE(all.is_cuda());
    EXPECT_EQ(all.sum().item<double>(), 2);
    const at::Tensor sent = at::full({4}, 7.0).to(at::kCUDA);
    comm.broadcast(comm.rank() == 0 ? sent : sent.zero_(), 0);
    EXPECT_EQ(sent.sum().item<double>(), 28);
  });
}

// Every mistake is one line that names the operation, and leaves the communicator usable.
TEST(Communicator, MistakesAreRefusedBeforeAnythingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto refused = [](const std::function<void()>& call) {
      return message_of<InvalidArgument>(call);
    };
    EXPECT_THAT(refused([&] { comm.broadcast(at::zeros({2}), 2); }),
                HasSubstr("broadcast: root 2 is not a rank of this group (0 to 1)"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::ones({2}, at::kInt), ReduceOp::kAvg); }),
                HasSubstr("avg is not defined on int32"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::ones({2}), ReduceOp::kBitAnd); }),
                HasSubstr("bit_and is not defined on float32"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::ones({2}, at::kComplexFloat)); }),
                HasSubstr("dtype"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::empty({2}, at::Device(at::kMeta))); }),
                HasSubstr("dense tensors of the host and of devices, not "));
    EXPECT_THAT(refused([&] { comm.reduce_scatter(at::ones({3})); }),
                HasSubstr("does not divide by 2 ranks"));
    EXPECT_THAT(refused([&] { comm.scatterv(at::ones({1}), {}, std::vector<int64_t>{1}, 0); }),
                HasSubstr("1 entries for 2 ranks"));
    EXPECT_THAT(refused([&] { comm.send(at::ones({1}), 0, -1); }), HasSubstr("tag -1 is negative"));
    EXPECT_THAT(refused([&] { comm.all_reduce(at::ones({1}).expand({5})); }),
                HasSubstr("share memory"));
    EXPECT_THAT(refused([&] { comm.iall_gather(at::zeros({3}), at::zeros({2})).wait(); }),
                HasSubstr("`output` has shape [3]"));
    EXPECT_THAT(refused([&] { comm.iall_gather(at::zeros({4}, at::kInt), at::zeros({2})).wait(); }),
                HasSubstr("input is float32 but output is int32"));
    const at::Tensor whole = at::zeros({4});
    EXPECT_THAT(refused([&] { comm.iall_gather(whole, whole.narrow(0, 1, 2)).wait(); }),
                HasSubstr("share memory"));
    const at::Tensor t = at::ones({2});
    comm.all_reduce(t);
    EXPECT_EQ(t.sum().item<float>(), 4.0f);
  });
}

// Their product is 0 in 64 bits.
TEST(Communicator, SymmetricTensorsOfUncountableSizeAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    const int64_t half = int64_t{1} << 31;
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { comm.symmetric_empty({half, half, 2}, at::kFloat); }),
        HasSubstr("shape [2147483648, 2147483648, 2] has more bytes than 64 bits can count"));
    EXPECT_EQ(comm.symmetric_empty({half, half, 0}, at::kFloat).numel(), 0);
    EXPECT_EQ(comm.symmetric_empty({2, 3}, at::kFloat).numel(), 6);
  });
}

TEST(Communicator, NonBlockingOperationsOverlapAndFinishInAnyOrder) {
  testing::run_threads(3,
                       [](Communicator& comm) {
                         std::vector<at::Tensor> tensors;
                         std::vector<Work> works;
                         for (int i = 0; i < 20; ++i) {
                           tensors.push_back(at::full({1000 + i}, comm.rank() + i));
                           works.push_back(comm.iall_reduce(tensors.back()));
                         }
                         const at::Tensor last = comm.all_gather(at::full({1}, comm.rank()));
                         for (int i = 19; i >= 0; --i) works[i].wait();
                         for (int i = 0; i < 20; ++i)
                           EXPECT_TRUE(tensors[i].eq(3 + 3 * i).all().item<bool>()) << i;
                         EXPECT_EQ(last.sum().item<float>(), 3.0f);
                       },
                       {.slot_bytes = 1024});
}

TEST(Communicator, TestPollsWithoutBlocking) {
  testing::run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const at::Tensor t = at::ones({4});
    Work work = comm.iall_reduce(t);
    int polls = 0;
    while (!work.test()) ++polls;
    EXPECT_GT(polls, comm.rank() == 0 ? 10 : -1);
    EXPECT_EQ(t[0].item<float>(), 2.0f);
    EXPECT_TRUE(work.test());
  });
}

TEST(Communicator, ADroppedWorkStillServesItsPeers) {
  testing::run_threads(2, [](Communicator& comm) {
    at::Tensor t = at::full({100'000}, 1.0f);
    if (comm.rank() == 0) {
      {
        const Work dropped = comm.iall_reduce(t);
      }
      t.reset();
      comm.barrier();
    } else {
      comm.all_reduce(t);
      EXPECT_EQ(t[99'999].item<float>(), 2.0f);
      comm.barrier();
    }
  });
}

TEST(Communicator, MessagesMatchByTagOutOfOrder) {
  testing::run_threads(2,
                       [](Communicator& comm) {
                         // Longer than a channel, so the first message must get out of the second's
                         // way.
                         const int64_t n = 3000;
                         if (comm.rank() == 0) {
                           Work a = comm.isend(at::full({n}, 1.0f), 1, 1);
                           Work b = comm.isend(at::full({n}, 2.0f), 1, 2);
                           Work c = comm.isend(at::full({n}, 3.0f), 1, 1);
                           b.wait();
                           a.wait();
                           c.wait();
                         } else {
                           const at::Tensor one = at::zeros({n}), two = at::zeros({n}),
                                            three = at::zeros({n});
                           comm.recv(two, 0, 2);
                           comm.recv(one, 0, 1);
                           comm.recv(three, 0, 1);
                           EXPECT_EQ(one[0].item<float>(), 1.0f);
                           EXPECT_EQ(two[n - 1].item<float>(), 2.0f);
                           EXPECT_EQ(three[0].item<float>(), 3.0f);
                         }
                       },
                       {.slot_bytes = 1024});
}

TEST(Communicator, ProbeTellsWhichMessagesAreThere) {
  testing::run_threads(3, [](Communicator& comm) {
    const at::Tensor value = at::full({300}, comm.rank(), at::kInt);
    if (comm.rank() != 0) {
      // A message of another tag precedes the expected one, and is still there afterwards.
      comm.send(at::full({70'000}, -1, at::kInt), 0, 9);
      comm.send(value, 0, 5);
      comm.barrier();
      return;
    }
    EXPECT_EQ(comm.probe(0, 5), Probe::kNothing);
    at::Tensor got = at::zeros({300}, at::kInt);
    std::vector<int> sources;
    while (sources.size() < 2) {
      for (int src = 1; src < 3; ++src) {
        if (comm.probe(src, 5) != Probe::kMessage) continue;
        EXPECT_EQ(comm.probe(src, 5), Probe::kMessage);
        comm.recv(got, src, 5);
        EXPECT_TRUE(at::equal(got, at::full({300}, src, at::kInt)));
        sources.push_back(src);
      }
    }
    std::sort(sources.begin(), sources.end());
    EXPECT_EQ(sources, (std::vector<int>{1, 2}));
    at::Tensor other = at::zeros({70'000}, at::kInt);
    // A posted receive claims its message.
    Work posted = comm.irecv(other, 1, 9);
    EXPECT_EQ(comm.probe(1, 9), Probe::kNothing);
    posted.wait();
    EXPECT_EQ(comm.probe(2, 9), Probe::kMessage);
    comm.recv(other, 2, 9);
    EXPECT_TRUE(at::equal(other, at::full({70'000}, -1, at::kInt)));
    comm.barrier();
  });
}

TEST(Communicator, ProbeSaysThatARankHasLeft) {
  testing::run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.send(at::ones({1}), 0, 3);
      return;
    }
    while (comm.probe(1, 4) != Probe::kLeft) {
    }
    EXPECT_EQ(comm.probe(1, 3), Probe::kMessage);
    at::Tensor last = at::zeros({1});
    comm.recv(last, 1, 3);
    EXPECT_EQ(last.item<float>(), 1);
  });
}

TEST(Communicator, ARankMaySendToItself) {
  testing::run_threads(1, [](Communicator& comm) {
    const at::Tensor got = at::zeros({50'000});
    Work receive = comm.irecv(got, 0);
    comm.send(at::ones({50'000}), 0);
    receive.wait();
    EXPECT_EQ(got.sum().item<float>(), 50'000.0f);
  });
}

TEST(Communicator, AMessageOfAnotherShapeIsAMismatch) {
  const std::string text = message_of<Mismatch>([] {
    testing::run_threads(2, [](Communicator& comm) {
      if (comm.rank() == 0)
        comm.send(at::ones({4}), 1);
      else
        comm.recv(at::zeros({5}), 0);
      comm.barrier();
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("send float32 x 4 to rank 1 at communicator_test.cpp"),
                          HasSubstr("recv float32 x 5 from rank 0")));
}

// Each way of getting out of step ends on every rank, with both calls and their lines.
TEST(Communicator, DifferentCallsAreNamedOnEveryRank) {
  struct Case {
    const char* name;
    std::function<void(Communicator&)> call;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"operation",
       [](Communicator& c) { c.rank() == 0 ? c.all_reduce(at::ones({3})) : c.barrier(); },
       "barrier at"},
      {"count", [](Communicator& c) { c.all_reduce(at::ones({3 + c.rank()})); }, "float32 x 4"},
      {"dtype",
       [](Communicator& c) {
         c.all_reduce(at::ones({3}, c.rank() == 0 ? at::kFloat : at::kDouble));
       },
       "float64 x 3"},
      {"reduction",
       [](Communicator& c) {
         c.all_reduce(at::ones({3}), c.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax);
       },
       "max float32"},
      {"root",
       [](Communicator& c) {
         c.broadcast(at::ones({3}), c.rank());
         c.barrier();
         c.barrier();
       },
       "root 1"},
  };
  for (const Case& one : cases) {
    std::mutex mutex;
    std::vector<std::string> texts;
    testing::run_threads(2, [&](Communicator& comm) {
      comm.barrier();
      const std::string text = message_of<Mismatch>([&] {
        one.call(comm);
        comm.barrier();
        comm.barrier();
      });
      const std::lock_guard lock(mutex);
      texts.push_back(text);
      EXPECT_THAT(message_of<Mismatch>([&] { comm.barrier(); }), ::testing::Ne("no exception"))
          << "the communicator is broken";
    });
    for (const std::string& text : texts) {
      EXPECT_THAT(text, AllOf(HasSubstr("#2"), HasSubstr(one.expected),
                              HasSubstr("communicator_test.cpp:")))
          << one.name;
    }
  }
}

TEST(Communicator, ALateRankIsATimeoutThatNamesIt) {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::atomic<int> timed_out{0};
  testing::run_threads(3,
                       [&](Communicator& comm) {
                         comm.barrier();
                         if (comm.rank() == 1) {
                           for (int i = 0; i < 2000 && timed_out < 2; ++i) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(10));
                           }
                           return;
                         }
                         const std::string text =
                             message_of<Timeout>([&] { comm.all_reduce(at::ones({8})); });
                         const std::lock_guard lock(mutex);
                         texts.push_back(text);
                         ++timed_out;
                       },
                       {.timeout = std::chrono::milliseconds(200)});
  ASSERT_EQ(texts.size(), 2u);
  for (const std::string& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("#2 all_reduce sum float32 x 8 at communicator_test.cpp"),
                            HasSubstr("waited 0.2 s"),
                            HasSubstr("rank 1, whose last collective was #1 barrier")));
  }
}

TEST(Communicator, ADepartedRankIsPeerLostButItsLastWordsCount) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor t = at::ones({5});
    comm.all_reduce(t);
    if (comm.rank() == 1) return;  // leaves; rank 0 may still be reading
    EXPECT_EQ(t[0].item<float>(), 2.0f);
    const auto start = std::chrono::steady_clock::now();
    try {
      comm.all_reduce(t);
      ADD_FAILURE() << "no PeerLost";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  });
}

TEST(Communicator, AThrowingRankEndsTheOthersWaits) {
  const std::string text = message_of<std::runtime_error>([] {
    testing::run_threads(3, [](Communicator& comm) {
      if (comm.rank() == 2) throw std::runtime_error("out of cheese");
      comm.barrier();
    });
  });
  EXPECT_EQ(text, "out of cheese");
}

TEST(Communicator, RefusesASecondThread) {
  testing::run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      comm.barrier();
      return;
    }
    std::string text;
    std::thread second([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      text = message_of<InvalidArgument>([&] { comm.progress(); });
    });
    comm.barrier();
    second.join();
    EXPECT_THAT(text, HasSubstr("two threads"));
  });
}

// Another thread aborts while the rank waits for a message that never arrives.
TEST(Communicator, AnotherThreadMayAbortWhatARankWaitsFor) {
  for (const uint32_t slot_bytes : {0u, 1024u}) {
    AbortedWait wait;
    testing::run_threads(3, [&](Communicator& comm) { wait.run(comm); },
                         {.slot_bytes = slot_bytes});
  }
}

// Repeatedly, at any moment of short calls.
TEST(Communicator, AnAbortMayMeetAnyMomentOfACall) {
  for (int turn = 0; turn < 50; ++turn) {
    std::atomic<int> calls{0};
    testing::run_threads(2, [&](Communicator& comm) {
      std::optional<Watchdog> watchdog;
      if (comm.rank() == 0)
        watchdog.emplace(comm, [&, turn] { return calls >= turn * 7; }, "enough");
      const at::Tensor t = at::ones({8});
      const std::string text = message_of<PeerLost>([&] {
        while (true) {
          comm.all_reduce(t);
          ++calls;
        }
      });
      EXPECT_THAT(text, HasSubstr("enough"));
    });
  }
}

// Whatever the algorithm, the chunks and the late rank.
TEST(Communicator, ReductionsRepeatBitForBit) {
  constexpr int kSize = 4;
  struct Way {
    int64_t count;
    uint32_t slot_bytes;  // 0: without slots
  };
  for (const Way& way : {Way{5000, 65536}, Way{5000, 1024}, Way{5000, 0}, Way{200, 0}, Way{5, 0}}) {
    const testing::BitwiseSum sum(kSize, way.count);
    testing::run_threads(kSize,
                         [&](Communicator& comm) {
                           for (int late = -1; late < kSize; ++late) {
                             if (comm.rank() == late)
                               std::this_thread::sleep_for(std::chrono::milliseconds(1));
                             EXPECT_EQ(sum.check(comm), "") << "slots of " << way.slot_bytes
                                                            << " bytes, rank " << late << " late";
                           }
                         },
                         {.slot_bytes = way.slot_bytes});
  }
}

}  // namespace
}  // namespace lockstep::inline v0::communicator_test
