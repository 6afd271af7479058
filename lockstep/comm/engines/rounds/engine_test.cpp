#include "lockstep/comm/engines/rounds/engine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/comm/engines/rounds/stream_copy.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/exact.h"

namespace lockstep::inline v0::rounds_engine_test {
namespace {

constexpr int64_t kNever = -1;
constexpr int64_t kNoCopies = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoShares = kNoCopies;

struct Way {
  const char* name;
  rounds::Tuning tuning;
};
const std::vector<Way>& ways() {
  static const std::vector<Way> kWays = {
      {"default", {}},
      {"no lines", {.ll_up_to = kNever}},
      {"lines to the brim", {.ll_up_to = rounds::kLineCapacity}},
      {"staged",
       {.ll_up_to = kNever, .mapped = false, .shares_from = kNoShares, .copies_from = kNoCopies}},
      {"staged in shares",
       {.ll_up_to = kNever, .mapped = false, .shares_from = 1, .copies_from = kNoCopies}},
      {"lines and staged", {.mapped = false, .copies_from = kNoCopies}},
      {"copied",
       {.ll_up_to = kNever, .mapped = false, .copies_from = 1, .all_reduce_copies_from = 1}},
      {"copied and pushed",
       {.ll_up_to = 256, .mapped = false, .copies_from = 2048, .pushes_from = 4096}},
  };
  return kWays;
}

void run(int size, const rounds::Tuning& tuning, const std::function<void(Communicator&)>& fn) {
  rounds::RegionShape shape = rounds::default_shape(size);
  shape.slot_bytes = 4096;  // so that tests of moderate size take several rounds
  auto backends = make_local_backends(shape, tuning);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank, backend = std::move(backends[static_cast<size_t>(rank)])]() mutable {
          Communicator comm(std::move(backend), Topology{rank, size, rank, size, 0},
                            {.timeout = std::chrono::seconds(60)});
          try {
            fn(comm);
          } catch (const std::exception& error) {
            ADD_FAILURE() << "rank " << rank << ": " << error.what();
            comm.abort(error.what());
          }
        });
  }
  for (std::thread& thread : threads) thread.join();
}

// Values whose sums are rounded, so that the bits show the order of adding.
at::Tensor rough(int rank, int64_t count, at::ScalarType dtype) {
  std::mt19937 generator(static_cast<unsigned>(rank * 7919 + 1));
  std::uniform_real_distribution<float> values(-3.0f, 3.0f);
  at::Tensor tensor = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) tensor.mutable_data_ptr<float>()[i] = values(generator);
  return tensor.to(dtype);
}

// ((a0 + a1) + a2) + .., rounded once.
at::Tensor serial_sum(int size, int64_t count, at::ScalarType dtype, bool average) {
  at::Tensor sum = rough(0, count, dtype).to(accumulation_type(dtype));
  for (int r = 1; r < size; ++r) sum = sum + rough(r, count, dtype).to(accumulation_type(dtype));
  if (average) sum = sum / static_cast<double>(size);
  return sum.to(dtype);
}

// Lengths on both sides of every threshold, and lengths that no vector or line divides.
std::vector<int64_t> telling_counts(at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<int64_t> counts = {1, 13, 14, 15, 127, 5003};
  const rounds::Tuning usual;
  for (const int64_t bytes :
       {int64_t{256}, int64_t{2048}, usual.ll_up_to, rounds::kLineCapacity, usual.shares_from}) {
    for (const int64_t near : {-1, 0, 1}) counts.push_back(bytes / element + near);
  }
  // Several chunks of a copied all_reduce; once, since it takes its time.
  if (dtype == at::kFloat) counts.push_back(300 * 1024);
  return counts;
}

TEST(RoundsEngine, NoWayOfMovingDataChangesABit) {
  for (const int size : kSanitized ? std::vector<int>{2, 3} : std::vector<int>{1, 2, 3, 4}) {
    for (const Way& way : ways()) {
      run(size, way.tuning, [&](Communicator& comm) {
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
          for (const int64_t count : telling_counts(dtype)) {
            for (const bool average : {false, true}) {
              at::Tensor tensor = rough(comm.rank(), count, dtype);
              comm.all_reduce(tensor, average ? ReduceOp::kAvg : ReduceOp::kSum);
              ASSERT_TRUE(at::equal(tensor, serial_sum(size, count, dtype, average)))
                  << way.name << ", " << size << " ranks, " << dtype_name(dtype) << " x " << count;
            }
            const int64_t part = count / size;
            if (part == 0) continue;
            const at::Tensor mine =
                comm.reduce_scatter(rough(comm.rank(), part * size, dtype), ReduceOp::kSum);
            ASSERT_TRUE(at::equal(
                mine,
                serial_sum(size, part * size, dtype, false).narrow(0, comm.rank() * part, part)))
                << way.name << ", " << size << " ranks, reduce_scatter " << dtype_name(dtype)
                << " x " << count;
          }
        }
      });
    }
  }
}

// Every protocol has flags and counters of its own: calls of all kinds follow each other, many of
// them pending at once, on ranks that run at different speeds.
TEST(RoundsEngine, CallsOfAllKindsMixed) {
  constexpr int kCalls = kSanitized ? 200 : 600;
  for (const int size : {2, 3, 4}) {
    for (const Way& way : ways()) {
      run(size, way.tuning, [&](Communicator& comm) {
        std::mt19937 plan(42);  // the same on all ranks
        std::mt19937 pace(static_cast<unsigned>(comm.rank()));
        std::vector<std::pair<Work, std::function<void()>>> pending;
        const auto check = [&](const at::Tensor& got, const at::Tensor& expected, int call) {
          ASSERT_TRUE(at::equal(got, expected))
              << way.name << ", " << size << " ranks, call " << call;
        };
        for (int call = 0; call < kCalls; ++call) {
          const int64_t sizes[] = {0, 1, 100, 768, 769, 800, 2000, 9000};
          const int64_t count = sizes[plan() % 8];
          const int root = static_cast<int>(plan() % static_cast<unsigned>(size));
          std::vector<at::Tensor> inputs;
          for (int r = 0; r < size; ++r)
            inputs.push_back(testing::exact_input(r + call % 5, count, at::kFloat));
          const at::Tensor mine = inputs[static_cast<size_t>(comm.rank())].clone();
          if (pace() % 16 == 0) std::this_thread::yield();
          switch (plan() % 10) {
            case 0: {
              const at::Tensor sum = testing::exact_reduction(inputs, ReduceOp::kSum);
              pending.emplace_back(comm.iall_reduce(mine), [=] { check(mine, sum, call); });
              break;
            }
            case 1:
              comm.all_reduce(mine);
              check(mine, testing::exact_reduction(inputs, ReduceOp::kSum), call);
              break;
            case 2:
              comm.broadcast(mine, root);
              check(mine, inputs[static_cast<size_t>(root)], call);
              break;
            case 3:
              check(comm.all_gather(mine), at::cat(inputs), call);
              break;
            case 4: {
              const at::Tensor all = comm.gather(mine, root);
              if (comm.rank() == root) check(all, at::cat(inputs), call);
              break;
            }
            case 5:
              comm.barrier();
              break;
            case 6: {
              const at::Tensor output = at::empty({count});
              const at::Tensor whole = at::cat(inputs);
              pending.emplace_back(
                  comm.iscatter(output, comm.rank() == root ? whole : at::Tensor(), root),
                  [=, expected = inputs[static_cast<size_t>(comm.rank())]] {
                    check(output, expected, call);
                  });
              break;
            }
            case 7:
              comm.reduce(mine, root);
              if (comm.rank() == root)
                check(mine, testing::exact_reduction(inputs, ReduceOp::kSum), call);
              break;
            case 8: {
              const at::Tensor whole = mine.repeat({size});
              check(comm.reduce_scatter(whole), testing::exact_reduction(inputs, ReduceOp::kSum),
                    call);
              break;
            }
            case 9:
              check(comm.all_to_all(mine.repeat({size})), at::cat(inputs), call);
              break;
          }
          if (pending.size() > 90 || plan() % 40 == 0) {  // more than there are descriptors
            for (auto& [work, then] : pending) {
              work.wait();
              then();
            }
            pending.clear();
          }
        }
        for (auto& [work, then] : pending) {
          work.wait();
          then();
        }
      });
    }
  }
}

// Several chunks with every algorithm.
TEST(RoundsEngine, LargeTensors) {
  constexpr int64_t kCount = 300'007;
  for (const int size : {2, 3}) {
    for (const Way& way : ways()) {
      run(size, way.tuning, [&](Communicator& comm) {
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < size; ++r) inputs.push_back(rough(r, kCount, at::kFloat));
        const at::Tensor& mine = inputs[static_cast<size_t>(comm.rank())];
        const std::string where = std::string(way.name) + ", " + std::to_string(size) + " ranks";
        at::Tensor tensor = mine.clone();
        comm.all_reduce(tensor);
        EXPECT_TRUE(at::equal(tensor, serial_sum(size, kCount, at::kFloat, false))) << where;
        for (int root = 0; root < size; ++root) {
          tensor.copy_(mine);
          comm.broadcast(tensor, root);
          EXPECT_TRUE(at::equal(tensor, inputs[static_cast<size_t>(root)])) << where;
        }
        EXPECT_TRUE(at::equal(comm.all_gather(mine), at::cat(inputs))) << where;
        const int64_t part = kCount / size;
        std::vector<at::Tensor> parts;
        for (const at::Tensor& input : inputs)
          parts.push_back(input.narrow(0, comm.rank() * part, part));
        EXPECT_TRUE(at::equal(comm.all_to_all(mine.narrow(0, 0, part * size)), at::cat(parts)))
            << where;
      });
    }
  }
}

TEST(RoundsEngine, ManyRanksShareASlot) {
  const rounds::Tuning tuning = {
      .ll_up_to = kNever, .mapped = false, .shares_from = 1, .copies_from = kNoCopies};
  constexpr int kSize = 9;
  run(kSize, tuning, [&](Communicator& comm) {
    for (const int64_t count : {1, 40, 5003}) {
      const at::Tensor tensor = rough(comm.rank(), count, at::kFloat);
      comm.all_reduce(tensor);
      EXPECT_TRUE(at::equal(tensor, serial_sum(kSize, count, at::kFloat, false))) << count;
    }
  });
}

// A small call's data precedes the rest of the call: a peer need not wait for the call's record.
TEST(RoundsEngine, WhatIsShownReachesThePeerBeforeTheCallRuns) {
  auto backends = make_local_backends(2);
  float data[2] = {1, 2};
  Call calls[2];
  for (size_t r = 0; r < 2; ++r) {
    calls[r].op = Op::kAllReduce;
    calls[r].dtype = at::kFloat;
    calls[r].count = 1;
    calls[r].output = reinterpret_cast<std::byte*>(&data[r]);
    calls[r].input = calls[r].output;
  }
  for (int call = 0; call < 200; ++call) {  // more than there are descriptors
    const size_t first = call % 2;
    backends[first]->show(calls[first]);
    backends[1 - first]->run(calls[1 - first], std::chrono::seconds(10));
    backends[first]->run(calls[first], std::chrono::seconds(10));
    ASSERT_EQ(data[0], 3) << "call " << call;
    ASSERT_EQ(data[1], 3) << "call " << call;
    data[0] = 1;
    data[1] = 2;
  }
}

// Shown data is part of the call, whatever errors the ranks find in the call afterwards.
TEST(RoundsEngine, WhatIsShownOfDifferentCallsDoesNotMeet) {
  auto backends = make_local_backends(2);
  float data[2] = {1, 2};
  Call calls[2];
  for (size_t r = 0; r < 2; ++r) {
    calls[r].op = Op::kAllReduce;
    calls[r].dtype = at::kFloat;
    calls[r].reduce = r == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    calls[r].count = 1;
    calls[r].output = reinterpret_cast<std::byte*>(&data[r]);
    calls[r].input = calls[r].output;
    backends[r]->show(calls[r]);
  }
  std::thread peer(
      [&] { EXPECT_THROW(backends[1]->run(calls[1], std::chrono::seconds(10)), Mismatch); });
  EXPECT_THROW(backends[0]->run(calls[0], std::chrono::seconds(10)), Mismatch);
  peer.join();
  EXPECT_EQ(data[0], 1);
  EXPECT_EQ(data[1], 2);
}

TEST(StreamCopy, CopiesAllBytesAndNoOthers) {
  std::vector<std::byte> from(100'000), to(100'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const int64_t bytes : {0, 1, 63, 64, 2047, 2048, 2049, 2111, 4096, 16'383, 16'384, 70'001}) {
    for (const int64_t offset : {0, 1, 17, 64}) {
      for (const int64_t whole : {bytes, rounds::kStreamFrom}) {
        std::vector<std::byte> expected(to.size(), std::byte{0xee});
        std::copy_n(from.begin() + 3, bytes, expected.begin() + offset);
        std::fill(to.begin(), to.end(), std::byte{0xee});
        rounds::copy_part(to.data() + offset, from.data() + 3, bytes, whole);
        ASSERT_EQ(to, expected) << bytes << " of " << whole << " bytes at " << offset;
      }
    }
  }
}

// A rank that leaves with a pending call frees its memory: no peer may touch it afterwards.
TEST(RoundsEngine, NobodyTouchesTheMemoryOfARankThatGaveUp) {
  std::atomic<bool> gave_up = false, tried = false;
  run(2, {}, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      at::Tensor tensor = at::zeros({100'000});
      Work work = comm.iall_reduce(tensor);
      EXPECT_THROW(work.wait(Deadline::after(std::chrono::milliseconds(30))), Timeout);
      const at::Tensor before = tensor.clone();
      gave_up = true;
      while (!tried) std::this_thread::yield();
      EXPECT_TRUE(at::equal(tensor, before));
    } else {
      while (!gave_up) std::this_thread::yield();
      EXPECT_THROW(comm.all_reduce(at::full({100'000}, 1.0f)), Timeout);
      tried = true;
    }
  });
}

// Like a pipeline's stage that computes: the message is larger than the ring, and its sender is in
// no call.
TEST(RoundsEngine, LargeMessagesComeWithoutTheirSendersHelp) {
  std::atomic<bool> received = false;
  run(2, {}, [&](Communicator& comm) {
    constexpr int64_t kCount = 1'000'000;
    if (comm.rank() == 0) {
      // The second one does not fit into a ring either; the third one, of another tag, is received
      // first.
      Work first = comm.isend(at::full({kCount}, 1.0f), 1, 0);
      Work second = comm.isend(at::full({kCount}, 2.0f), 1, 0);
      Work third = comm.isend(at::full({kCount}, 3.0f), 1, 7);
      while (!received) std::this_thread::yield();
      first.wait();
      second.wait();
      third.wait();
    } else {
      const at::Tensor tensor = at::zeros({kCount});
      for (const auto& [tag, value] : {std::pair(7, 3.0f), {0, 1.0f}, {0, 2.0f}}) {
        Work work = comm.irecv(tensor, 0, tag);
        EXPECT_NO_THROW(work.wait(Deadline::after(std::chrono::seconds(20))));
        EXPECT_TRUE(tensor.eq(value).all().item<bool>());
      }
      received = true;
    }
  });
}

// A message that was not pulled when its sender left never arrives, and no rank reads its former
// memory.
TEST(RoundsEngine, LargeMessagesOfARankThatLeftAreLost) {
  std::atomic<bool> left = false;
  run(2, {}, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      {
        Communicator mine = std::move(comm);
        const Work work = mine.isend(at::full({1'000'000}, 1.0f), 1);
      }
      left = true;
    } else {
      while (!left) std::this_thread::yield();
      const at::Tensor tensor = at::zeros({1'000'000});
      EXPECT_THROW(comm.recv(tensor, 0), PeerLost);
      EXPECT_TRUE(tensor.eq(0).all().item<bool>());
    }
  });
}

// Stops a rank at a point, as SIGSTOP stops a process, until it may continue.
struct Gate {
  std::atomic<bool> inside{false};
  std::atomic<bool> open{false};
  std::atomic<int> transfers{0};
};

class GatedPeerMemory final : public rounds::PeerMemory {
 public:
  explicit GatedPeerMemory(Gate* gate) : gate_(gate) {}
  std::optional<rounds::Window> find(const std::byte*, int64_t) const override { return {}; }
  std::byte* peer(int, rounds::Window) const override { return nullptr; }
  SymmetricMemory allocate(int64_t) override { return {}; }
  bool copies() const override { return true; }
  void read(int, uint64_t address, std::byte* to, int64_t bytes) const override {
    stop();
    std::memcpy(to, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
  }
  void write(int, uint64_t address, const std::byte* from, int64_t bytes) const override {
    stop();
    std::memcpy(reinterpret_cast<void*>(address), from, static_cast<size_t>(bytes));
  }

 private:
  void stop() const {
    if (gate_ == nullptr) return;
    gate_->inside = true;
    while (!gate_->open) std::this_thread::yield();
    ++gate_->transfers;
  }

  Gate* gate_;  // null: it does not stop
};

// Rank 1 stops in the middle of writing into rank 0's output; rank 0 gives up and destroys its
// communicator and tensors. Then rank 1 resumes.
TEST(RoundsEngine, ARankThatStoppedInsideWritesToNobodyElsesMemory) {
  const rounds::Tuning tuning = {.ll_up_to = kNever,
                                 .mapped = false,
                                 .copies_from = 1,
                                 .pushes_from = 1,
                                 .quiesce_at_most = std::chrono::milliseconds(20)};
  const rounds::RegionShape shape = rounds::default_shape(2);
  const std::shared_ptr<void> memory = rounds::fresh_memory(shape);
  const rounds::Region region(static_cast<std::byte*>(memory.get()), shape);
  rounds::Region(region).initialise();
  Gate gate;
  const auto make = [&](int rank) {
    return Communicator(
        std::make_unique<rounds::RoundsBackend>(
            rounds::engine_capabilities(), memory, region, rank,
            std::make_unique<GatedPeerMemory>(rank == 1 ? &gate : nullptr), rounds::IsDead(),
            tuning),
        Topology{rank, 2, rank, 2, 0},
        {.timeout = rank == 0 ? std::chrono::milliseconds(300) : std::chrono::seconds(60)});
  };
  constexpr int64_t kCount = 1'000'000;
  std::vector<float> output(2 * kCount, 0.0f);
  std::atomic<bool> given_back{false};
  std::thread stopped([&] {
    Communicator comm = make(1);
    EXPECT_THROW(comm.all_gather(at::ones({kCount})), Timeout);
  });
  {
    Communicator comm = make(0);
    const at::Tensor tensor =
        at::from_blob(output.data(), {2 * kCount}, [&](void*) { given_back = true; }, at::kFloat);
    Work work = comm.iall_gather(tensor, at::ones({kCount}));
    while (!gate.inside) std::this_thread::yield();
    EXPECT_THROW(work.wait(), Timeout);
  }
  EXPECT_FALSE(given_back) << "while a peer may still write to it";
  gate.open = true;
  stopped.join();
  EXPECT_EQ(gate.transfers, 1) << "of those that it would have made";
}

// Rank 1 stops in the middle of pulling a message; rank 0 leaves, and its memory is reused. Then
// rank 1 resumes.
TEST(RoundsEngine, ARankThatStoppedInsideTakesNothingOfWhoeverLeft) {
  const rounds::Tuning tuning = {.ll_up_to = kNever,
                                 .mapped = false,
                                 .copies_from = 1,
                                 .quiesce_at_most = std::chrono::milliseconds(20)};
  const rounds::RegionShape shape = rounds::default_shape(2);
  for (const int64_t count :
       {int64_t{1'000'000}, int64_t{100'000}}) {  // for several transfers, and for one
    const std::shared_ptr<void> memory = rounds::fresh_memory(shape);
    const rounds::Region region(static_cast<std::byte*>(memory.get()), shape);
    rounds::Region(region).initialise();
    Gate gate;
    const auto make = [&](int rank) {
      return Communicator(std::make_unique<rounds::RoundsBackend>(
                              rounds::engine_capabilities(), memory, region, rank,
                              std::make_unique<GatedPeerMemory>(rank == 1 ? &gate : nullptr),
                              rounds::IsDead(), tuning),
                          Topology{rank, 2, rank, 2, 0}, {.timeout = std::chrono::seconds(60)});
    };
    std::vector<float> input(static_cast<size_t>(count), 1.0f);
    std::thread stopped([&] {
      Communicator comm = make(1);
      EXPECT_THROW(comm.recv(at::zeros({count}), 0), PeerLost) << count;
    });
    {
      Communicator comm = make(0);
      const Work work = comm.isend(at::from_blob(input.data(), {count}, at::kFloat), 1);
      while (!gate.inside) std::this_thread::yield();
    }
    std::fill(input.begin(), input.end(), 2.0f);
    gate.open = true;
    stopped.join();
    EXPECT_EQ(gate.transfers, 1) << "of those that it would have made";
  }
}

}  // namespace
}  // namespace lockstep::inline v0::rounds_engine_test
