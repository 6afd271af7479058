// Recovery among threads: ranks that leave, and calls that fail at one moment exactly.
#include "lockstep/recover/recovery.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::recovery_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Once it is armed, this rank's next barrier fails when it is complete: the others have passed it.
struct Faults {
  std::atomic<int> barriers{0};
};

class FailsAfterwards final : public Request {
 public:
  explicit FailsAfterwards(std::unique_ptr<Request> request) : request_(std::move(request)) {}
  bool poll() override {
    if (request_->poll()) fail();
    return false;
  }
  void wait(Deadline deadline) override {
    request_->wait(deadline);
    fail();
  }

 private:
  [[noreturn]] static void fail() { throw PeerLost("a barrier failed on this rank alone", -1); }
  std::unique_ptr<Request> request_;
};

class FaultyEngine final : public Backend {
 public:
  FaultyEngine(std::unique_ptr<Backend> engine, Faults& faults)
      : engine_(std::move(engine)), faults_(faults) {}
  const Capabilities& capabilities() const override { return engine_->capabilities(); }
  std::unique_ptr<Request> start(const Call& call) override {
    std::unique_ptr<Request> request = engine_->start(call);
    if (call.op != Op::kBarrier || faults_.barriers == 0) return request;
    --faults_.barriers;
    return std::make_unique<FailsAfterwards>(std::move(request));
  }
  void progress() override { engine_->progress(); }
  void set_siblings(SiblingProgress* siblings) override { engine_->set_siblings(siblings); }
  bool lost(int rank) const override { return engine_->lost(rank); }
  void abort(const Breakage& why) noexcept override { engine_->abort(why); }
  void interrupt(const Breakage& why) noexcept override { engine_->interrupt(why); }
  bool close() noexcept override { return engine_->close(); }

 private:
  std::unique_ptr<Backend> engine_;
  Faults& faults_;
};

// A rank's, so that its further groups have its faults, too.
class FaultyMaker final : public GroupMaker {
 public:
  FaultyMaker(std::shared_ptr<GroupMaker> maker, Faults& faults)
      : maker_(std::move(maker)), faults_(faults) {}
  Engines make(const std::string& name, const Topology& topology, const std::vector<int>& members,
               Deadline deadline) override {
    Engines engines = maker_->make(name, topology, members, deadline);
    engines.own = std::make_unique<FaultyEngine>(std::move(engines.own), faults_);
    return engines;
  }
  void settle(const std::string& name) noexcept override { maker_->settle(name); }
  Store& store() override { return maker_->store(); }

 private:
  std::shared_ptr<GroupMaker> maker_;
  Faults& faults_;
};

constexpr int64_t kOfAStep = 12;  // samples

// The model is one number, the sum of all samples' numbers; exact, whoever adds which.
struct SumImpl : torch::nn::Module {
  SumImpl() { sum = register_parameter("sum", at::zeros({1}, at::kDouble), false); }
  at::Tensor sum;
};

// A rank as a thread.
struct Rank {
  int first = 0;  // its number at the beginning
  Faults faults = {};
  bool leaves = false;
  std::vector<int> seen = {};            // samples; it is given back and inherited
  std::map<int64_t, int> computed = {};  // how often each step was; never given back
  int recoveries = 0, size = 0;
  double sum = 0;
};
// What happens to a rank at that moment of a step.
using Moment = std::function<void(Rank& rank, const char* what, int64_t step)>;

void train(Rank& rank, const Communicator& comm, int64_t steps, const Moment& moment,
           bool inherits) {
  const auto model = std::make_shared<SumImpl>();
  rank.seen.assign(static_cast<size_t>(steps * kOfAStep), 0);
  const auto from = [](const std::string& text, std::vector<int> seen) {
    std::istringstream words(text);
    for (int& count : seen) words >> count;
    return seen;
  };
  Recoverable state{.model = model};
  state.save = [&rank] {
    std::ostringstream text;
    for (const int count : rank.seen) text << count << ' ';
    return text.str();
  };
  state.load = [&rank, from](const std::string& text) { rank.seen = from(text, rank.seen); };
  if (inherits)
    state.inherit = [&rank, from](const std::string& text) {
      const std::vector<int> gone = from(text, rank.seen);
      for (size_t i = 0; i < gone.size(); ++i) rank.seen[i] += gone[i];
    };
  Recovery run(comm, std::move(state), {.patience = std::chrono::seconds(20), .shrinks = true});
  while (run.step() < steps) try {
      while (run.step() < steps) {
        const int64_t step = run.step();
        ++rank.computed[step];
        const at::Tensor sum = at::zeros({1}, at::kDouble);
        for (int64_t i = run.comm().rank(); i < kOfAStep; i += run.comm().size()) {
          sum.add_(static_cast<double>(step * kOfAStep + i));
          ++rank.seen[static_cast<size_t>(step * kOfAStep + i)];
        }
        moment(rank, "summed", step);
        if (rank.leaves) return;
        run.comm().all_reduce(sum);
        moment(rank, "reduced", step);
        if (rank.leaves) return;
        run.update([&model = *model, sum] {
          const at::NoGradGuard no_grad;
          model.sum.add_(sum);
        });
      }
    } catch (...) {
      moment(rank, "failed", run.step());
      if (rank.leaves) return;
      run.recover();
    }
  run.finish();
  rank.recoveries = run.recoveries();
  rank.size = run.comm().size();
  rank.sum = model->sum.item<double>();
}

std::vector<std::unique_ptr<Rank>> run_ranks(int size, int64_t steps, const Moment& moment,
                                             bool inherits = true) {
  std::vector<std::unique_ptr<Backend>> engines = make_local_backends(size);
  const std::shared_ptr<GroupMaker> groups = make_local_groups();
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Rank>());
    ranks.back()->first = r;
    threads.emplace_back([&, r, &rank = *ranks.back(), engine = std::move(engines[r])]() mutable {
      auto origin = std::make_shared<GroupOrigin>(
          GroupOrigin{.maker = std::make_shared<FaultyMaker>(groups, rank.faults),
                      .name = "all",
                      .members = all});
      try {
        train(rank,
              Communicator(std::make_unique<FaultyEngine>(std::move(engine), rank.faults),
                           Topology{r, size, r, size, 0},
                           {.timeout = std::chrono::seconds(10), .origin = std::move(origin)}),
              steps, moment, inherits);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::vector<int> seen_by_those_left(const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::vector<int> seen(ranks[0]->seen.size(), 0);
  for (const auto& rank : ranks)
    for (size_t i = 0; !rank->leaves && i < seen.size(); ++i) seen[i] += rank->seen[i];
  return seen;
}

void expect_all_done(const std::vector<std::unique_ptr<Rank>>& ranks, int left) {
  const auto samples = static_cast<double>(ranks[0]->seen.size());
  for (const auto& rank : ranks) {
    if (rank->leaves) continue;
    EXPECT_EQ(rank->size, left);
    EXPECT_EQ(rank->sum, samples * (samples - 1) / 2) << "rank " << rank->first;
  }
}

TEST(Recovery, TheOthersGoOnWithoutRanksThatLeave) {
  // Rank 0 leaves before its gradient is there, then the next with theirs, down to one.
  const auto ranks = run_ranks(4, 8, [](Rank& rank, const char* what, int64_t step) {
    rank.leaves = (rank.first == 0 && what == std::string("summed") && step == 2) ||
                  (rank.first == 3 && what == std::string("reduced") && step == 4) ||
                  (rank.first == 1 && what == std::string("summed") && step == 6);
  });
  expect_all_done(ranks, 1);
  EXPECT_THAT(seen_by_those_left(ranks), Each(1)) << "what the others had seen is inherited";
}

TEST(Recovery, WhatRanksHadAloneIsLostWhereNobodyInheritsIt) {
  const auto ranks = run_ranks(
      3, 4,
      [](Rank& rank, const char* what, int64_t step) {
        rank.leaves = rank.first == 1 && what == std::string("summed") && step == 2;
      },
      /*inherits=*/false);
  expect_all_done(ranks, 2);
  const std::vector<int> seen = seen_by_those_left(ranks);
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 4 * kOfAStep - 2 * 4);
}

TEST(Recovery, NeighboursMayLeaveTogetherAndWhileTheOthersMeet) {
  const auto ranks = run_ranks(5, 5, [](Rank& rank, const char* what, int64_t step) {
    rank.leaves =
        ((rank.first == 0 || rank.first == 4) && what == std::string("summed") && step == 2) ||
        (rank.first == 2 && what == std::string("failed"));
  });
  expect_all_done(ranks, 2);
  EXPECT_THAT(seen_by_those_left(ranks), Each(1));
}

// One rank does not learn that all had agreed on the step, while the others take it.
TEST(Recovery, ARankBehindTheOthersCompletesTheStep) {
  const auto ranks = run_ranks(3, 6, [](Rank& rank, const char* what, int64_t step) {
    if (rank.first == 1 && what == std::string("reduced") && step == 3 && rank.computed[3] == 1)
      rank.faults.barriers = 1;
  });
  expect_all_done(ranks, 3);
  EXPECT_THAT(seen_by_those_left(ranks), Each(1));
  for (const auto& rank : ranks) EXPECT_EQ(rank->recoveries, 1);
  EXPECT_EQ(ranks[1]->computed[3], 1) << "it completes the step, and does not repeat it";
  EXPECT_EQ(ranks[1]->computed[4], 1);
  EXPECT_EQ(ranks[0]->computed[3], 1);
}

// One rank does not learn that all had the numbers of the smaller group, while the others go on.
TEST(Recovery, ARankBehindTheOthersTakesTheNewNumbers) {
  for (const int left : {0, 2}) {
    ::testing::internal::CaptureStderr();
    const auto ranks = run_ranks(4, 6, [left](Rank& rank, const char* what, int64_t step) {
      rank.leaves = rank.first == left && what == std::string("summed") && step == 3;
      // Its next barrier is that of the meeting.
      if (rank.first == 1 && what == std::string("failed") && rank.computed[3] == 1)
        rank.faults.barriers = 1;
    });
    expect_all_done(ranks, 3);
    EXPECT_THAT(seen_by_those_left(ranks), Each(1)) << "inherited once, and not twice";
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("without rank " + std::to_string(left) + ", on 3 ranks"));
  }
}

TEST(Recovery, RanksAreNamedByTheirFirstNumbers) {
  ::testing::internal::CaptureStderr();
  const auto ranks = run_ranks(5, 6, [](Rank& rank, const char* what, int64_t step) {
    rank.leaves = what == std::string("summed") &&
                  ((rank.first == 0 && step == 1) || (rank.first == 3 && step == 2) ||
                   (rank.first == 2 && step == 4) || (rank.first == 4 && step == 4));
  });
  expect_all_done(ranks, 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("without rank 0, on 4 ranks;"));
  EXPECT_THAT(said, HasSubstr("without rank 3, on 3 ranks;"));
  EXPECT_THAT(said, HasSubstr("without rank 2, 4, on 1 rank;"));
}

TEST(Recovery, ItSaysWhatIsLostWithAllThatHadACopy) {
  ::testing::internal::CaptureStderr();
  const auto ranks = run_ranks(5, 3, [](Rank& rank, const char* what, int64_t step) {
    rank.leaves = rank.first > 1 && what == std::string("summed") && step == 2;
  });
  expect_all_done(ranks, 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("without rank 2, 3, 4, on 2 ranks; what ranks had alone whose neighbours "
                        "have died with them is lost;"));
  const std::vector<int> seen = seen_by_those_left(ranks);
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 3 * kOfAStep - 2 * 2)
      << "of rank 3 in two steps";
}

TEST(Recovery, InheritNeedsSaveAndLoad) {
  auto engines = make_local_backends(1);
  const Communicator comm(std::move(engines[0]), Topology{0, 1, 0, 1, 0}, {});
  Recoverable state{.model = std::make_shared<SumImpl>()};
  state.inherit = [](const std::string&) {};
  EXPECT_THAT(message_of<InvalidArgument>([&] { Recovery(comm, state); }),
              HasSubstr("give save and load, too"));
}

}  // namespace
}  // namespace lockstep::inline v0::recovery_test
