#include "lockstep/train/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0::replica_check_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 4));
    last = register_module("last", torch::nn::Linear(4, 2));
    torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(0.25);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

class Saves final : public TrainCallback {
 public:
  void on_save(TrainerState& state, bool) override { last = state.step; }
  int64_t last = 0;
};

// Trains 12 steps that only count; in `step` the rank `rank` flips one bit. The error; "" without
// one. `saved`: the last step that was. Not the least bit, which a later addition rounds away.
std::string error_of(Communicator& comm, int64_t every, int64_t step, int rank, int64_t& saved) {
  Net net;
  int64_t steps = 0;
  TrainTask task{.steps_per_epoch = 12,
                 .begin_epoch = [](int64_t, int64_t) {},
                 .step = [&]() -> StepResult {
                   torch::NoGradGuard no_grad;
                   for (auto& parameter : net->parameters()) parameter.add_(1);
                   if (++steps == step && comm.rank() == rank)
                     static_cast<char*>(net->last->weight.mutable_data_ptr())[2] ^= 1;
                   return {.loss = 1, .samples = 1};
                 }};
  TrainLoop loop(comm, std::move(task), {.epochs = 1, .save_every = 1});
  const auto saves = std::make_shared<Saves>();
  const auto strategy = make_strategy("ddp");
  if (const auto check = replica_check(comm, *net, *strategy, every)) loop.add(check);
  loop.add(saves);
  std::string error;
  try {
    loop.run();
  } catch (const Mismatch& mismatch) {
    error = mismatch.what();
  }
  saved = saves->last;
  return error;
}

TEST(ReplicaCheck, ABitThatFlipsIsNamedAtTheNextCheckAndNotSaved) {
  testing::run_threads(3, [](Communicator& comm) {
    int64_t saved = 0;
    EXPECT_THAT(error_of(comm, 4, 6, 1, saved),
                AllOf(HasSubstr("replicas differ at step 8: 'last.weight' of rank 1 (on "),
                      HasSubstr(") is not that of the other 2 ranks; ")));
    EXPECT_EQ(saved, 7);
    EXPECT_THAT(error_of(comm, 1, 6, 0, saved),
                HasSubstr("differ at step 6: 'last.weight' of rank 0"));
    EXPECT_EQ(saved, 5) << "what is not equal is not saved";
  });
}

TEST(ReplicaCheck, EqualRanksGoOnAndZeroIsNever) {
  testing::run_threads(3, [](Communicator& comm) {
    int64_t saved = 0;
    EXPECT_EQ(error_of(comm, 2, 99, 0, saved), "");
    EXPECT_EQ(saved, 12);
    const uint64_t before = comm.stats().of(Op::kAllGather).calls;
    EXPECT_EQ(error_of(comm, 0, 3, 1, saved), "");
    EXPECT_EQ(comm.stats().of(Op::kAllGather).calls, before);
  });
}

TEST(ReplicaCheck, IsRefusedWhereRanksHaveNoParametersOfTheirOwn) {
  for (const char* name :
       {"ddp", "average", "ring", "naive-ring", "horovod", "zero1", "zero2", "logical4"})
    EXPECT_NO_THROW(check_has_replicas(*make_strategy(name), 5)) << name;
  for (const char* name : {"zero3", "fsdp"}) {
    EXPECT_NO_THROW(check_has_replicas(*make_strategy(name), 0)) << name;
    try {
      check_has_replicas(*make_strategy(name), 5);
      ADD_FAILURE() << name;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("check_replicas is 5, but under strategy " + std::string(name)));
    }
  }
  testing::run_threads(1, [](Communicator& comm) {
    EXPECT_THROW(ReplicaCheckCallback(comm, {}, 0), InvalidArgument);
  });
}

}  // namespace lockstep::inline v0::replica_check_test
