#include "lockstep/train/strategy.h"
#include "lockstep/train/class_loss_test.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>
#include <filesystem>
#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/ddp/average_parameters.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::strategy_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(3, 5));
    second = register_module("second", torch::nn::Linear(5, 2));
    seen = register_buffer("seen", at::zeros({1}));
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : parameters()) {
      p.set_data(p.detach().to(at::kDouble));
      p.copy_(at::linspace(-0.6, 0.7, p.numel(), at::kDouble).view(p.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  torch::nn::Linear first = nullptr, second = nullptr;
  at::Tensor seen;
};
TORCH_MODULE(Net);

struct Points {
  at::Tensor input, target;
  explicit Points(int64_t count) {
    input = at::arange(count * 3, at::kDouble).view({count, 3}).sin();
    target = (input.select(1, 0) > input.select(1, 1)).to(at::kLong);
  }
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

using PointsTrainer = Trainer<Net, Points, ClassLoss>;

class StrategyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("lockstep-strategy-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  TrainingArguments arguments(int64_t batch_size, int64_t accumulation) const {
    return {.output_dir = folder_.string(),
            .per_device_train_batch_size = batch_size / accumulation,
            .gradient_accumulation_steps = accumulation,
            .num_train_epochs = 3,
            .learning_rate = 0.05,
            .max_grad_norm = 0.5,
            .lr_scheduler_type = "constant",
            .save_strategy = "no",
            .disable_tqdm = true};
  }
  fs::path folder_;
};

at::Tensor weights_of(Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : net->parameters()) all.push_back(p.detach().flatten());
  return at::cat(all);
}

// Every rank ends with the values that `initial` gives; of what is divided it asks for its part
// alone.
TEST(Strategies, AModelWithoutValuesGetsThemAPartAtATime) {
  for (const std::string& name : strategy_names()) {
    testing::run_threads(2, [&](Communicator& comm) {
      SCOPED_TRACE(name);
      Net net, reference;
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : net->parameters()) p.fill_(NAN);
      net->second->bias.set_requires_grad(false);
      int64_t asked = 0;
      const auto strategy = make_strategy(name);
      const auto values = reference->named_parameters();
      const StrategyModel model(
          net, strategy, comm,
          [&](const std::string& parameter, int64_t begin, const at::Tensor& part) {
            asked += part.numel();
            part.copy_(values[parameter].view(-1).slice(0, begin, begin + part.numel()));
          });
      const auto sgd = torch::optim::SGDOptions(0.1);
      const auto optimizer = strategy->state().make_optimizer({{net->parameters()}}, sgd);
      const auto whole = strategy->placement().whole_parameters();
      EXPECT_TRUE(at::equal(weights_of(net), weights_of(reference)));
      const int64_t all = weights_of(reference).numel(), frozen = net->second->bias.numel();
      if (strategy->traits().divides_state) {
        const at::Tensor sum = at::full({1}, asked - frozen, at::kLong);
        comm.all_reduce(sum);
        EXPECT_EQ(sum.item<int64_t>(), all - frozen);
        EXPECT_LT(asked, all);
      } else {
        EXPECT_EQ(asked, all);
      }
    });
  }
}

TEST_F(StrategyTest, EveryOneTrainsAsOneProcess) {
  const Points points(32);
  at::Tensor alone;
  testing::run_threads(1, [&](Communicator& comm) {
    PointsTrainer trainer(
        {.model = Net(), .comm = comm, .args = arguments(8, 1), .train_dataset = &points});
    EXPECT_EQ(trainer.train().global_step, 12);
    alone = weights_of(trainer.model());
  });
  for (const std::string& name : strategy_names()) {
    for (const int64_t accumulation : {1, 2}) {
      if (name == "horovod" && accumulation > 1) continue;  // below
      testing::run_threads(2, [&](Communicator& comm) {
        PointsTrainer trainer({.model = Net(),
                               .comm = comm,
                               .args = arguments(4, accumulation),
                               .train_dataset = &points,
                               .strategy = make_strategy(name)});
        EXPECT_EQ(trainer.train().global_step, 12);
        EXPECT_TRUE(at::allclose(weights_of(trainer.model()), alone, 0, 1e-11))
            << name << ", accumulation " << accumulation << "\n"
            << weights_of(trainer.model()) - alone;
      });
    }
  }
}

TEST_F(StrategyTest, AResumedRunIsTheWholeOne) {
  const Points points(32);
  for (const std::string& name : strategy_names()) {
    at::Tensor whole, resumed;
    const auto run = [&](int64_t max_steps, const std::string& from, const std::string& by) {
      at::Tensor weights;
      std::mutex mutex;
      testing::run_threads(2, [&](Communicator& comm) {
        TrainingArguments args = arguments(4, 1);
        args.max_steps = max_steps;
        args.resume_from_checkpoint = from;
        args.save_strategy = "steps";
        args.save_steps = 5;
        PointsTrainer trainer({.model = Net(),
                               .comm = comm,
                               .args = args,
                               .train_dataset = &points,
                               .strategy = make_strategy(by)});
        trainer.train();
        const std::lock_guard lock(mutex);
        if (comm.rank() == 0) weights = weights_of(trainer.model()).clone();
      });
      return weights;
    };
    whole = run(10, "", name);
    const std::string middle = (folder_ / "checkpoint-5").string();
    resumed = run(10, middle, name);
    EXPECT_TRUE(at::equal(whole, resumed)) << name;
    // By another one, from the same state.
    EXPECT_TRUE(at::allclose(run(10, middle, name == "zero3" ? "ddp" : "zero3"), whole, 0, 1e-11))
        << name;
    fs::remove_all(folder_);
  }
}

// One of a user's own: no gradient travels; every third step the parameters are averaged.
class LocalSteps final : public StrategyState {
 public:
  bool step(torch::optim::Optimizer& optimizer, const StrategyStep& options) override {
    const bool taken = StrategyState::step(optimizer, options);
    if (++steps_ % 3 == 0) average_parameters(model(), comm());
    return taken;
  }

 private:
  int64_t steps_ = 0;
};

TEST_F(StrategyTest, OneOfOnesOwn) {
  const Points points(32);
  std::mutex mutex;
  std::vector<at::Tensor> found;
  testing::run_threads(2, [&](Communicator& comm) {
    PointsTrainer trainer({.model = Net(),
                           .comm = comm,
                           .args = arguments(4, 1),
                           .train_dataset = &points,
                           .strategy = std::make_shared<Strategy>(Strategy::Parts{
                               .name = "local-steps", .state = std::make_unique<LocalSteps>()})});
    EXPECT_EQ(trainer.train().global_step, 12);
    const std::lock_guard lock(mutex);
    found.push_back(weights_of(trainer.model()));
  });
  EXPECT_TRUE(at::equal(found[0], found[1]));
}

// What the base does, a part at a time: models are compared, rank 0's is everybody's.
TEST_F(StrategyTest, SetUpComparesAndSends) {
  for (const std::string& name : strategy_names()) {
    testing::run_threads(2, [&](Communicator& comm) {
      Net net;
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : net->parameters()) p.add_(comm.rank());
      net->seen.fill_(comm.rank() + 3);
      const StrategyModel<Net> model(net, make_strategy(name), comm);
      EXPECT_TRUE(at::equal(weights_of(net),
                            [] {
                              Net other;
                              return weights_of(other);
                            }()))
          << name;
      EXPECT_EQ(net->seen.item<float>(), 3) << name;
    });
    testing::run_threads(2, [&](Communicator& comm) {
      const torch::nn::Linear net(2, comm.rank() + 1);
      EXPECT_THROW(StrategyModel<torch::nn::Linear>(net, make_strategy(name), comm), Mismatch)
          << name;
    });
  }
}

TEST_F(StrategyTest, UnderAnAccelerator) {
  const Points points(16);
  at::Tensor first;
  for (const char* name : {"ddp", "average", "zero1", "zero2", "zero3"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      Accelerator accelerator(comm,
                              {.gradient_accumulation_steps = 2, .strategy = make_strategy(name)});
      Net net;
      data::SequentialSampler order(points.size());
      data::Loader<Points> whole(points, order, {.batch_size = 2});
      auto [model, loader] = accelerator.prepare(net, whole);
      const auto made = accelerator.strategy().state().make_optimizer(
          {torch::optim::OptimizerParamGroup(net->parameters())}, torch::optim::SGDOptions(0.1));
      auto [optimizer] = accelerator.prepare(*made);
      for (auto& batch : loader) {
        const auto guard = accelerator.accumulate(model);
        accelerator.backward(
            torch::nn::functional::cross_entropy(model(batch.input), batch.target));
        optimizer.step(/*max_norm=*/0.1);
        optimizer.zero_grad();
      }
      if (comm.rank() != 0) return;
      if (first.defined())
        EXPECT_TRUE(at::allclose(weights_of(net), first, 0, 1e-12)) << name;
      else
        first = weights_of(net).clone();
    });
  }
  testing::run_threads(1, [&](Communicator& comm) {
    Accelerator accelerator(comm, {.strategy = make_strategy("zero3")});
    Net net;
    torch::optim::SGD plain(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model] = accelerator.prepare(net);
    EXPECT_THROW(accelerator.prepare(plain), InvalidArgument);
    EXPECT_THROW(accelerator.clip_grad_norm(net->parameters(), 1), InvalidArgument);
    (void)model;
  });
}

// A step that overflows is left out, and training goes on.
TEST_F(StrategyTest, AfterAStepThatTheScalerLeavesOut) {
  const at::Tensor x = at::linspace(-1, 1, 12).view({4, 3}),
                   y = at::tensor({0, 1, 1, 0}, at::kLong);
  for (const std::string& name : strategy_names()) {
    testing::run_threads(2, [&](Communicator& comm) {
      torch::nn::Linear net(3, 2);
      const auto strategy = make_strategy(name);
      StrategyModel<torch::nn::Linear> model(net, strategy, comm);
      const auto optimizer = strategy->state().make_optimizer(
          {torch::optim::OptimizerParamGroup(net->parameters())}, torch::optim::AdamWOptions(0.1));
      amp::GradScaler scaler(comm);
      const auto step = [&](double factor) {
        optimizer->zero_grad();
        const at::Tensor loss = torch::nn::functional::cross_entropy(model(x), y) * factor;
        strategy->gradients().compute([&] { return loss; }, &scaler);
        return strategy->state().step(*optimizer, {.max_norm = 1.0, .scaler = &scaler});
      };
      EXPECT_TRUE(step(1)) << name;
      const at::Tensor before = net->weight.detach().clone();
      const double scale = scaler.current_scale();
      EXPECT_FALSE(step(comm.rank() == 0 ? 1 : 1e38)) << name;
      EXPECT_TRUE(at::equal(net->weight, before)) << name;
      EXPECT_LT(scaler.current_scale(), scale) << name;
      EXPECT_TRUE(step(1)) << name;
      EXPECT_FALSE(at::equal(net->weight, before)) << name;
    });
  }
}

TEST_F(StrategyTest, AccumulationsNest) {
  for (const char* name : {"ddp", "average", "zero1", "zero2", "zero3"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      Net net;
      const auto strategy = make_strategy(name);
      StrategyModel<Net> model(net, strategy, comm);
      const auto optimizer = strategy->state().make_optimizer(
          {torch::optim::OptimizerParamGroup(net->parameters())}, torch::optim::SGDOptions(0.1));
      const at::Tensor x = at::linspace(-1, 1 + comm.rank(), 12, at::kDouble).view({4, 3});
      const auto backward = [&] {
        strategy->gradients().compute([&] { return model(x).square().sum(); });
      };
      {
        const Accumulation outer(strategy);
        {
          const Accumulation inner(strategy);
          backward();
        }
        backward();
      }
      backward();
      strategy->state().step(*optimizer);
      at::Tensor both = weights_of(net);
      comm.all_reduce(both, ReduceOp::kMax);
      EXPECT_TRUE(at::equal(both, weights_of(net))) << name;
    });
  }
}

// Under every strategy that looks at the parameters once; those that do at each step go on.
TEST_F(StrategyTest, AModelThatChangesAfterSetUpIsNamed) {
  std::vector<std::string> names = strategy_names();
  names.emplace_back("logical2");
  for (const std::string& name : names) {
    testing::run_threads(2, [&](Communicator& comm) {
      SCOPED_TRACE(name);
      Net net;
      net->second->bias.set_requires_grad(false);
      const auto strategy = make_strategy(name);
      StrategyModel model(net, strategy, comm);
      const auto optimizer =
          strategy->state().make_optimizer({{net->parameters()}}, torch::optim::SGDOptions(0.1));
      const auto step = [&] {
        strategy->gradients().compute([&] { return model(at::ones({2, 3}, at::kDouble)).sum(); });
        strategy->state().step(*optimizer);
      };
      step();
      net->second->bias.set_requires_grad(true);
      if (name == "average" || name.ends_with("ring")) return step();
      EXPECT_THAT(message_of<InvalidArgument>(step),
                  HasSubstr("parameter 'second.bias' required no gradient"));
    });
  }
}

TEST_F(StrategyTest, NamesAndRefusals) {
  for (const std::string& name : strategy_names()) EXPECT_EQ(make_strategy(name)->name(), name);
  EXPECT_EQ(make_strategy("naive_ring")->name(), "naive-ring");
  EXPECT_EQ(make_strategy("zero")->name(), "zero1");
  try {
    make_strategy("magic");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("choose ddp, average, ring, naive-ring, horovod, zero1, zero2, zero3, fsdp, "
                  "diloco or logical8"));
  }
  EXPECT_THROW(make_strategy("horovod")->gradients().communicate(false), InvalidArgument);
  EXPECT_THROW(make_strategy("zero2")->gradients().communicate(false), InvalidArgument);
  EXPECT_THROW(make_strategy("zero1")->state().make_optimizer({}, torch::optim::SGDOptions(0.1)),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::strategy_test
