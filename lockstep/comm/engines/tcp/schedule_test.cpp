#include "lockstep/comm/engines/tcp/schedule.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "lockstep/comm/backend/reduce_kernels.h"

namespace lockstep::inline v0::tcp::schedule_test {
namespace {

// Simulates all ranks of a collective in one thread: runs ready steps in a random order, so that
// steps that the schedule does not order happen in any order.
class Simulation {
 public:
  Simulation(std::vector<Call> calls, const ScheduleSizes& sizes, unsigned seed)
      : random_(seed), size_(static_cast<int>(calls.size())), calls_(std::move(calls)) {
    for (int r = 0; r < size_; ++r) {
      ranks_.push_back({make_schedule(calls_[r], r, size_, sizes)});
      Rank& rank = ranks_.back();
      rank.scratch.resize(static_cast<size_t>(rank.schedule.scratch_bytes));
      rank.waits.resize(rank.schedule.steps.size());
      for (const auto& [earlier, later] : rank.schedule.edges) {
        EXPECT_LT(earlier, later);
        EXPECT_NE(rank.schedule.steps[later].kind, Step::Kind::kReceive);
        rank.waits[later].insert(earlier);
      }
      for (size_t i = 0; i < rank.schedule.steps.size(); ++i) {
        rank.open.insert(static_cast<int>(i));
        const Step& step = rank.schedule.steps[i];
        if (step.kind == Step::Kind::kSend) rank.sends[step.peer].push_back(static_cast<int>(i));
        if (step.kind == Step::Kind::kReceive)
          rank.receives[step.peer].push_back(static_cast<int>(i));
      }
    }
  }

  // Returns true if every step of every rank could run.
  bool run() {
    while (true) {
      std::vector<std::pair<int, int>> ready;
      for (int r = 0; r < size_; ++r) {
        for (const int i : ranks_[r].open) {
          if (is_ready(r, i)) ready.emplace_back(r, i);
        }
      }
      if (ready.empty()) break;
      const auto [r, i] = ready[random_() % ready.size()];
      perform(r, i);
    }
    for (const Rank& rank : ranks_) {
      if (!rank.open.empty()) return false;
    }
    return true;
  }
  int64_t sent_by(int rank) const { return ranks_[rank].sent; }
  int64_t scratch_of(int rank) const { return ranks_[rank].schedule.scratch_bytes; }

 private:
  struct Rank {
    Schedule schedule;
    std::vector<std::byte> scratch = {};
    std::vector<std::set<int>> waits = {};
    std::set<int> open = {};
    std::map<int, std::deque<int>> sends = {}, receives = {};
    int64_t sent = 0;
  };

  std::byte* memory(int r, const Piece& piece) {
    switch (piece.place) {
      case Place::kInput:
        return const_cast<std::byte*>(calls_[r].input) + piece.offset;
      case Place::kOutput:
        return calls_[r].output + piece.offset;
      case Place::kScratch:
        EXPECT_LE(piece.offset + piece.bytes, static_cast<int64_t>(ranks_[r].scratch.size()));
        return ranks_[r].scratch.data() + piece.offset;
    }
    return nullptr;
  }

  bool is_ready(int r, int i) {
    const Step& step = ranks_[r].schedule.steps[i];
    for (const int earlier : ranks_[r].waits[i]) {
      if (ranks_[r].open.count(earlier) != 0) return false;
    }
    if (step.kind == Step::Kind::kSend) return ranks_[r].sends[step.peer].front() == i;
    if (step.kind == Step::Kind::kReceive)
      return ranks_[r].receives[step.peer].front() == i && !wires_[{step.peer, r}].empty();
    return true;
  }

  void perform(int r, int i) {
    Rank& rank = ranks_[r];
    const Step& step = rank.schedule.steps[i];
    const auto bytes = static_cast<size_t>(step.piece.bytes);
    switch (step.kind) {
      case Step::Kind::kSend: {
        std::vector<std::byte> data(bytes);
        if (bytes > 0) std::memcpy(data.data(), memory(r, step.piece), bytes);
        wires_[{r, step.peer}].push_back(std::move(data));
        rank.sends[step.peer].pop_front();
        rank.sent += step.piece.bytes;
        break;
      }
      case Step::Kind::kReceive: {
        auto& wire = wires_[{step.peer, r}];
        ASSERT_EQ(wire.front().size(), bytes);
        if (bytes > 0) std::memcpy(memory(r, step.piece), wire.front().data(), bytes);
        wire.pop_front();
        rank.receives[step.peer].pop_front();
        break;
      }
      case Step::Kind::kCopy:
        if (bytes > 0) std::memmove(memory(r, step.piece), memory(r, step.from[0]), bytes);
        break;
      case Step::Kind::kReduce: {
        std::vector<const std::byte*> inputs;
        for (const Piece& piece : step.from) {
          ASSERT_EQ(piece.bytes, step.piece.bytes);
          inputs.push_back(memory(r, piece));
        }
        ASSERT_EQ(static_cast<int>(inputs.size()), size_);
        reduce_buffers(memory(r, step.piece), inputs,
                       step.piece.bytes / static_cast<int64_t>(c10::elementSize(calls_[r].dtype)),
                       calls_[r].dtype, calls_[r].reduce);
        break;
      }
    }
    rank.open.erase(i);
  }

  std::mt19937 random_;
  int size_;
  std::vector<Call> calls_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> wires_;
};

// Values whose sum depends on the order of adding.
float value(int rank, int64_t i) {
  return static_cast<float>((rank * 7919 + i * 104729) % 1013) / 7.0f + 1e6f * (rank % 3 == 0);
}

std::vector<float> values(int rank, int64_t count) {
  std::vector<float> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = value(rank, i);
  return v;
}

std::vector<float> in_rank_order(int size, int64_t count) {
  std::vector<float> sum = values(0, count);
  for (int r = 1; r < size; ++r) {
    for (int64_t i = 0; i < count; ++i) sum[static_cast<size_t>(i)] += value(r, i);
  }
  return sum;
}

class Schedules : public ::testing::TestWithParam<std::tuple<int, int64_t, ScheduleSizes>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  int64_t count() const { return std::get<1>(GetParam()); }

  // Unequal parts, one of them empty.
  std::vector<int64_t> parts() const {
    std::vector<int64_t> counts;
    for (int r = 0; r < size(); ++r) counts.push_back(r == 1 ? 0 : count() + r);
    return counts;
  }
  void run(const std::vector<Call>& calls) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      const auto saved_inputs = inputs_;
      Simulation simulation(calls, std::get<2>(GetParam()), seed);
      ASSERT_TRUE(simulation.run()) << to_string(calls[0].op) << ": a step never became ready";
      if (seed + 1 < 3) {
        for (size_t r = 0; r < inputs_.size(); ++r)
          std::copy(saved_inputs[r].begin(), saved_inputs[r].end(), inputs_[r].begin());
      }
    }
  }
  Call call(Op op, int r) {
    Call c;
    c.op = op;
    c.dtype = at::kFloat;
    c.root = is_rooted(op) ? size() - 1 : -1;
    c.input = reinterpret_cast<const std::byte*>(inputs_[r].data());
    c.output = reinterpret_cast<std::byte*>(outputs_[r].data());
    return c;
  }
  void prepare(int64_t in, int64_t out) {
    inputs_.clear();
    outputs_.clear();
    for (int r = 0; r < size(); ++r) {
      inputs_.push_back(values(r, in));
      outputs_.emplace_back(static_cast<size_t>(out), -1.0f);
    }
  }

  std::vector<std::vector<float>> inputs_, outputs_;
};

TEST_P(Schedules, Barrier) {
  prepare(1, 1);
  std::vector<Call> calls;
  for (int r = 0; r < size(); ++r) calls.push_back(call(Op::kBarrier, r));
  run(calls);
}

TEST_P(Schedules, ReductionsAddInRankOrder) {
  const std::vector<float> expected = in_rank_order(size(), count());
  for (const Op op : {Op::kAllReduce, Op::kReduce}) {
    for (const bool in_place : {false, true}) {
      prepare(count(), count());
      std::vector<Call> calls;
      for (int r = 0; r < size(); ++r) {
        calls.push_back(call(op, r));
        calls.back().count = count();
        if (in_place) calls.back().output = reinterpret_cast<std::byte*>(inputs_[r].data());
      }
      run(calls);
      for (int r = 0; r < size(); ++r) {
        if (op == Op::kReduce && r != size() - 1) continue;
        EXPECT_EQ(in_place ? inputs_[r] : outputs_[r], expected) << to_string(op) << " rank " << r;
      }
    }
  }
  const std::vector<int64_t> counts = parts();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const std::vector<float> sums = in_rank_order(size(), total);
  prepare(total, count() + size());
  std::vector<Call> calls;
  for (int r = 0; r < size(); ++r) {
    calls.push_back(call(Op::kReduceScatter, r));
    calls.back().counts = counts;
  }
  run(calls);
  int64_t begin = 0;
  for (int r = 0; r < size(); ++r) {
    for (int64_t i = 0; i < counts[r]; ++i) ASSERT_EQ(outputs_[r][i], sums[begin + i]) << r;
    begin += counts[r];
  }
}

TEST_P(Schedules, Movements) {
  const std::vector<int64_t> counts = parts();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int root = size() - 1;
  for (const Op op : {Op::kBroadcast, Op::kGather, Op::kAllGather, Op::kScatter}) {
    prepare(total, total);
    std::vector<Call> calls;
    for (int r = 0; r < size(); ++r) {
      calls.push_back(call(op, r));
      if (op == Op::kBroadcast) {
        calls.back().count = count();
        outputs_[r] = values(r, count());
        calls.back().output = reinterpret_cast<std::byte*>(outputs_[r].data());
      } else {
        calls.back().counts = counts;
      }
    }
    run(calls);
    for (int r = 0; r < size(); ++r) {
      if (op == Op::kBroadcast) {
        EXPECT_EQ(outputs_[r], values(root, count())) << r;
      }
      if (op == Op::kAllGather || (op == Op::kGather && r == root)) {
        int64_t at = 0;
        for (int from = 0; from < size(); ++from) {
          for (int64_t i = 0; i < counts[from]; ++i)
            ASSERT_EQ(outputs_[r][at++], value(from, i)) << to_string(op) << r << from;
        }
      }
      if (op == Op::kScatter) {
        const int64_t at = std::accumulate(counts.begin(), counts.begin() + r, int64_t{0});
        for (int64_t i = 0; i < counts[r]; ++i) ASSERT_EQ(outputs_[r][i], value(root, at + i)) << r;
      }
    }
  }
}

TEST_P(Schedules, AllToAllUnequal) {
  const auto sent = [&](int from, int to) { return (from + 2 * to) % 3 * count() / 2; };
  prepare(count() * size() * 2 + 1, count() * size() * 2 + 1);
  std::vector<Call> calls;
  for (int r = 0; r < size(); ++r) {
    calls.push_back(call(Op::kAllToAll, r));
    for (int d = 0; d < size(); ++d) {
      calls.back().counts.push_back(sent(r, d));
      calls.back().recv_counts.push_back(sent(d, r));
    }
  }
  run(calls);
  for (int r = 0; r < size(); ++r) {
    int64_t at = 0;
    for (int from = 0; from < size(); ++from) {
      int64_t begin = 0;
      for (int d = 0; d < r; ++d) begin += sent(from, d);
      for (int64_t i = 0; i < sent(from, r); ++i)
        ASSERT_EQ(outputs_[r][at++], value(from, begin + i)) << r << " from " << from;
    }
  }
}

// Pieces of 3 floats and blocks of 40, so that every loop runs many times.
INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 9),
                                            ::testing::Values<int64_t>(0, 1, 7, 41),
                                            ::testing::Values(ScheduleSizes{},
                                                              ScheduleSizes{0, 12, 160},
                                                              ScheduleSizes{100, 24, 1 << 20})));

TEST(Schedule, TrafficAndMemoryOfALargeAllReduce) {
  const int64_t count = 64 << 20;  // 256 MiB
  for (const int size : {2, 3, 4}) {
    for (int rank = 0; rank < size; ++rank) {
      Call call;
      call.op = Op::kAllReduce;
      call.dtype = at::kFloat;
      call.count = count;
      const Schedule schedule = make_schedule(call, rank, size);
      int64_t sent = 0;
      for (const Step& step : schedule.steps) {
        if (step.kind == Step::Kind::kSend) sent += step.piece.bytes;
      }
      EXPECT_NEAR(static_cast<double>(sent), 2.0 * (size - 1) / size * count * 4, 64);
      EXPECT_LE(schedule.scratch_bytes, 2 * ScheduleSizes{}.block_bytes);
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::tcp::schedule_test
