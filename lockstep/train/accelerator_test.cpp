#include "lockstep/train/accelerator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/normed_net.h"

namespace lockstep::inline v0::accelerator_test {

using train_test::NormedNet;

struct Numbers {
  int64_t count;
  int64_t size() const { return count; }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    const at::Tensor x = rows.to(at::kDouble).unsqueeze(1) / static_cast<double>(count);
    return {at::cat({x.sin(), x * x}, 1), rows};
  }
};

torch::nn::Linear make_model() {
  torch::nn::Linear model(2, 1);
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  model->weight.fill_(0.3);
  model->bias.zero_();
  return model;
}

at::Tensor loss_of(const at::Tensor& output, const data::Batch& batch) {
  return (output.squeeze(1) - batch.target.to(output.scalar_type()) / 10).pow(2).mean();
}

struct Work {
  explicit Work(int64_t samples, int64_t batch)
      : data{samples},
        model(make_model()),
        sgd(model->parameters(), torch::optim::AdamOptions(0.05)),
        sampler(samples),
        loader(data, sampler, {.batch_size = batch}) {}
  Numbers data;
  torch::nn::Linear model;
  optim::FusedAdam sgd;
  data::SequentialSampler sampler;
  data::Loader<Numbers> loader;
};

at::Tensor weights_after(int ranks, int64_t batch, int64_t accumulation, bool one_call = false) {
  at::Tensor result;
  testing::run_threads(ranks, [&](Communicator& comm) {
    Work setup(24, batch);
    Accelerator accelerator(comm, {.gradient_accumulation_steps = accumulation});
    auto [model, optimizer, loader] = accelerator.prepare(setup.model, setup.sgd, setup.loader);
    int steps = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& sample : loader) {
        const auto guard = accelerator.accumulate(model);
        optimizer.zero_grad();
        if (one_call) {
          at::Tensor found;
          const at::Tensor loss =
              accelerator.backward([&] { return found = loss_of(model(sample.input), sample); });
          EXPECT_TRUE(at::equal(loss, found));
          EXPECT_FALSE(loss.requires_grad());
        } else {
          accelerator.backward(loss_of(model(sample.input), sample));
        }
        steps += optimizer.step() ? 1 : 0;
      }
    }
    EXPECT_EQ(steps, 6);
    if (comm.rank() == 0) result = setup.model->weight.detach().clone();
  });
  return result;
}

TEST(Accelerator, RanksAndAccumulationGiveTheStepsOfOneProcess) {
  const at::Tensor alone = weights_after(1, 8, 1);
  EXPECT_TRUE(at::allclose(weights_after(2, 4, 1), alone, 0, 1e-12));
  EXPECT_TRUE(at::equal(weights_after(2, 2, 2, /*one_call=*/true), weights_after(2, 2, 2)));
}

TEST(Accelerator, CountsItsMemoryAsPlanned) {
  testing::run_threads(2, [&](Communicator& comm) {
    Work setup(24, 4);
    Accelerator accelerator(comm, {});
    EXPECT_THROW((void)accelerator.planned_memory(), InvalidArgument);
    auto [model, optimizer, loader] = accelerator.prepare(setup.model, setup.sgd, setup.loader);
    StepMemory planned = accelerator.planned_memory();
    EXPECT_EQ(planned.parameters, 24);  // two weights and a bias of 8 bytes
    EXPECT_EQ(planned.state, 48);
    for (auto& sample : loader) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(sample.input), sample));
      optimizer.step();
    }
    planned.activations = accelerator.memory().activations;
    EXPECT_EQ(accelerator.memory(), planned);
    EXPECT_GE(planned.activations, 4 * 8);  // the output
  });
}

TEST(Accelerator, EvaluatesTheStatisticsThatItSaves) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const Numbers numbers{24};
    NormedNet net(make_model());
    torch::optim::SGD sgd(net->parameters(), 0.05);
    data::SequentialSampler sampler(numbers.size());
    data::Loader<Numbers> plain(numbers, sampler, {.batch_size = 4});
    Accelerator accelerator(comm, {});
    auto [model, optimizer, loader] = accelerator.prepare(net, sgd, plain);
    for (auto& sample : loader) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(sample.input), sample));
      optimizer.step();
    }
    const auto means = [&] { return comm.all_gather(net->norm->running_mean.view({1, 2})); };
    ASSERT_FALSE(means()[0].equal(means()[1])) << "nothing differs, and nothing is tested";
    const at::Tensor of_rank_0 = means()[0].clone();
    model.eval();
    EXPECT_TRUE(net->norm->running_mean.equal(of_rank_0));
    EXPECT_FALSE(net->is_training());
    accelerator.save_state(dir / "state");
    const Safetensors saved = read_checkpoint(dir / "state").model;
    EXPECT_TRUE(saved.find("norm.running_mean")->equal(net->norm->running_mean));
  });
}

TEST(Accelerator, GathersEverySampleOnceForMetrics) {
  for (const int ranks : {1, 2, 3}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      Work setup(10, 2);
      Accelerator accelerator(comm, {});
      auto [loader] = accelerator.prepare(setup.loader);
      for (int epoch = 0; epoch < 2; ++epoch) {
        std::vector<at::Tensor> seen;
        for (auto& sample : loader) seen.push_back(accelerator.gather_for_metrics(sample.target));
        EXPECT_TRUE(at::equal(at::cat(seen), at::arange(10))) << at::cat(seen);
      }
      EXPECT_EQ(accelerator.num_processes(), ranks);
    });
  }
}

// A loop over the dev set, whole or left by break, changes nothing of the training loop that it
// stands in.
TEST(Accelerator, AnEvaluationWithinAnEpochIsOutOfItsCount) {
  enum class Dev { kNone, kWhole, kLeft };
  const auto train = [](Dev how) {
    at::Tensor weight;
    testing::run_threads(2, [&](Communicator& comm) {
      Work setup(20, 2);  // five batches a rank: accumulated, four and one
      const Numbers dev_numbers{10};
      data::SequentialSampler in_order(dev_numbers.size());
      data::Loader<Numbers> plain_dev(dev_numbers, in_order, {.batch_size = 2});
      Accelerator accelerator(comm, {.gradient_accumulation_steps = 4});
      auto [model, optimizer, loader, dev] =
          accelerator.prepare(setup.model, setup.sgd, setup.loader, plain_dev);
      std::vector<at::Tensor> seen;
      int steps = 0;
      for (auto& sample : loader) {
        const auto guard = accelerator.accumulate(model);
        optimizer.zero_grad();
        accelerator.backward(loss_of(model(sample.input), sample));
        steps += optimizer.step() ? 1 : 0;
        std::vector<at::Tensor> of_dev;
        if (how != Dev::kNone) {
          for (auto& held_out : dev) {
            of_dev.push_back(accelerator.gather_for_metrics(held_out.target));
            if (how == Dev::kLeft) break;
          }
          const int64_t count = how == Dev::kLeft ? 4 : 10;
          EXPECT_TRUE(at::equal(at::cat(of_dev), at::arange(count))) << "each begins anew";
        }
        seen.push_back(accelerator.gather_for_metrics(sample.target));
      }
      EXPECT_EQ(steps, 2) << "the rest of an epoch is a step, too";
      EXPECT_TRUE(at::equal(at::cat(seen), at::arange(20)));
      if (comm.rank() == 0) weight = setup.model->weight.detach().clone();
    });
    return weight;
  };
  const at::Tensor expected = train(Dev::kNone);
  EXPECT_TRUE(at::equal(train(Dev::kWhole), expected));
  EXPECT_TRUE(at::equal(train(Dev::kLeft), expected));
}

// The next loop is another epoch, from its beginning, and knows nothing of what an accumulation had
// begun.
TEST(Accelerator, ALoopThatIsLeftIsOver) {
  testing::run_threads(2, [](Communicator& comm) {
    Work setup(24, 2), expected(24, 2);  // six batches a rank
    Accelerator accelerator(comm, {.gradient_accumulation_steps = 4});
    auto [model, optimizer, loader] = accelerator.prepare(setup.model, setup.sgd, setup.loader);
    Accelerator other(comm, {.gradient_accumulation_steps = 4});
    auto [plain, plain_optimizer, plain_loader] =
        other.prepare(expected.model, expected.sgd, expected.loader);
    // `zero_grad()` behind the step: what is left of a former accumulation stays until then.
    const auto batch = [](auto& with, auto& net, auto& of_net, auto& sample) {
      const auto guard = with.accumulate(net);
      with.backward(loss_of(net(sample.input), sample));
      const bool taken = of_net.step();
      of_net.zero_grad();
      return taken;
    };
    int64_t left_at = 0;
    for (auto& sample : loader) {
      batch(accelerator, model, optimizer, sample);
      if (++left_at == 2) break;
    }
    std::vector<at::Tensor> first;
    int steps = 0;
    for (auto& sample : loader) {
      steps += batch(accelerator, model, optimizer, sample) ? 1 : 0;
      first.push_back(accelerator.gather(sample.target));
    }
    EXPECT_EQ(steps, 2);
    EXPECT_TRUE(at::equal(at::cat(first), at::arange(24)));
    for (auto& sample : plain_loader) batch(other, plain, plain_optimizer, sample);
    EXPECT_TRUE(at::equal(setup.model->weight, expected.model->weight));
  });
}

// What save_state() says of a loop that was left: training goes on there, an evaluation begins
// anew.
TEST(Accelerator, AStateOfLoopsThatWereLeftGoesOnWhereTrainingStood) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto run = [&](bool resume) {
      Work setup(24, 2);
      data::Loader<Numbers> plain_dev(setup.data, setup.sampler, {.batch_size = 2});
      Accelerator accelerator(comm, {});
      auto [model, optimizer, loader, dev] =
          accelerator.prepare(setup.model, setup.sgd, setup.loader, plain_dev);
      if (resume) accelerator.load_state(dir / "state");
      int64_t batches = 0;
      for (auto& sample : loader) {
        optimizer.zero_grad();
        accelerator.backward(loss_of(model(sample.input), sample));
        optimizer.step();
        if (++batches == 2 && !resume) break;
      }
      int64_t first_of_dev = -1;
      for (auto& sample : dev) {
        first_of_dev = sample.target[0].template item<int64_t>();
        break;
      }
      EXPECT_EQ(first_of_dev, 2 * comm.rank());
      if (!resume) accelerator.save_state(dir / "state");
      return batches;
    };
    EXPECT_EQ(run(false), 2);
    EXPECT_EQ(run(true), 4);
  });
}

// Such as a job that is stopped again as soon as it is back: what is left of the epoch is still to
// come.
TEST(Accelerator, AResumedLoopThatIsLeftBeforeItsFirstBackwardKeepsItsPlace) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    // How many batches a loop has that goes on from `from` and ends after `most`; where it stood
    // then is saved.
    const auto run = [&](const std::string& from, int64_t most, bool trains) {
      Work setup(24, 2);
      Accelerator accelerator(comm, {});
      auto [model, optimizer, loader] = accelerator.prepare(setup.model, setup.sgd, setup.loader);
      if (!from.empty()) accelerator.load_state(dir / from);
      int64_t batches = 0;
      for (auto& sample : loader) {
        if (trains) {
          optimizer.zero_grad();
          accelerator.backward(loss_of(model(sample.input), sample));
          optimizer.step();
        }
        if (++batches == most) break;
      }
      accelerator.save_state(dir / (from + "s"));
      return batches;
    };
    EXPECT_EQ(run("", 2, true), 2);
    EXPECT_EQ(run("s", 1, false), 1);
    EXPECT_EQ(run("ss", 100, true), 3) << "of six";
  });
}

// The backward of a loop within it is its own too.
TEST(Accelerator, ALoopWhoseInnerLoopTrainsKeepsItsPlace) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto run = [&](bool resume) {
      Work setup(24, 2);
      data::Loader<Numbers> plain_inner(setup.data, setup.sampler, {.batch_size = 12});
      Accelerator accelerator(comm, {});
      auto [model, optimizer, loader, inner] =
          accelerator.prepare(setup.model, setup.sgd, setup.loader, plain_inner);
      if (resume) accelerator.load_state(dir / "state");
      int64_t batches = 0;
      for ([[maybe_unused]] auto& outer : loader) {
        for (auto& sample : inner) {
          optimizer.zero_grad();
          accelerator.backward(loss_of(model(sample.input), sample));
          optimizer.step();
        }
        if (++batches == 2 && !resume) break;
      }
      if (!resume) accelerator.save_state(dir / "state");
      return batches;
    };
    EXPECT_EQ(run(false), 2);
    EXPECT_EQ(run(true), 4);
  });
}

TEST(Accelerator, ReducesGathersAndKnowsTheMainProcess) {
  testing::run_threads(2, [](Communicator& comm) {
    Accelerator accelerator(comm, {});
    const at::Tensor mine = at::full({2}, static_cast<double>(comm.rank()), at::kDouble);
    EXPECT_TRUE(at::equal(accelerator.reduce(mine, "mean"), at::full({2}, 0.5, at::kDouble)));
    EXPECT_TRUE(at::equal(accelerator.reduce(mine), at::ones({2}, at::kDouble)));
    EXPECT_EQ(accelerator.gather(mine).size(0), 4);
    EXPECT_EQ(accelerator.is_main_process(), comm.rank() == 0);
    EXPECT_THROW(accelerator.reduce(mine, "max"), InvalidArgument);
  });
}

TEST(Accelerator, RefusesWhatItDoesNotKnow) {
  testing::run_threads(1, [](Communicator& comm) {
    EXPECT_THROW(Accelerator(comm, {.mixed_precision = "int8"}), InvalidArgument);
    EXPECT_THROW(Accelerator(comm, {.gradient_accumulation_steps = 0}), InvalidArgument);
    Accelerator accelerator(comm, {});
    EXPECT_THROW(accelerator.save_state("/nowhere"), InvalidArgument);
  });
}

TEST(Accelerator, GoesOnFromAStateWithinAnEpoch) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("lockstep-accelerator-" + std::to_string(::getpid()));
  const auto train = [&](Communicator& comm, bool resume) {
    Work setup(24, 2);
    Accelerator accelerator(comm, {});
    auto [model, optimizer, loader] = accelerator.prepare(setup.model, setup.sgd, setup.loader);
    if (resume) accelerator.load_state(folder);
    int64_t batches = 0;
    for (auto& sample : loader) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(sample.input), sample));
      optimizer.step();
      if (++batches == 4 && !resume) accelerator.save_state(folder);
    }
    EXPECT_EQ(batches, resume ? 2 : 6);
    return setup.model->weight.detach().clone();
  };
  at::Tensor whole;
  testing::run_threads(2, [&](Communicator& comm) {
    const at::Tensor weight = train(comm, false);
    if (comm.rank() == 0) whole = weight;
  });
  testing::run_threads(
      2, [&](Communicator& comm) { EXPECT_TRUE(at::equal(train(comm, true), whole)); });
  testing::run_threads(1, [&](Communicator& comm) {
    EXPECT_THROW(train(comm, true), InvalidArgument) << "an epoch of 12 batches, not of 6";
  });
  std::filesystem::remove_all(folder);
}

TEST(Accelerator, ComputesUnderAutocast) {
  testing::run_threads(1, [](Communicator& comm) {
    torch::nn::Linear linear(8, 8);
    Accelerator accelerator(comm, {.mixed_precision = "bf16"});
    auto [model] = accelerator.prepare(linear);
    const at::Tensor x = at::linspace(-1, 1, 32).view({4, 8});
    const at::Tensor y = model(x);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(y.to(at::kBFloat16).to(at::kFloat), y)) << "values of bfloat16";
  });
}

struct Parts {
  at::Tensor first;
  std::optional<at::Tensor> second;
  int64_t rows = 0;
  auto tensors() { return std::tie(first, second); }
};

// Every form of output that a forward may have.
struct ManyImpl : torch::nn::Module {
  ManyImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  auto forward(const at::Tensor& x) {
    const at::Tensor y = linear(x);
    return std::tuple{std::vector{y, y.argmax(1)}, std::optional{y}, Parts{y, y, x.size(0)},
                      std::map<std::string, at::Tensor>{{"y", y}}};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Many);

TEST(Accelerator, WidensEveryTensorOfAnOutput) {
  testing::run_threads(1, [](Communicator& comm) {
    Many many;
    Accelerator accelerator(comm, {.mixed_precision = "bf16"});
    auto [model] = accelerator.prepare(many);
    const auto [several, maybe, parts, named] = model(at::linspace(-1, 1, 32).view({4, 8}));
    for (const at::Tensor& y : {several[0], *maybe, parts.first, *parts.second, named.at("y")})
      EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_EQ(several[1].scalar_type(), at::kLong) << "classes stay what they are";
    EXPECT_EQ(parts.rows, 4);
  });
}

TEST(Accelerator, ASignalToOneRankStopsTheLoopsOfAllAfterTheSameStep) {
  testing::run_threads(2, [](Communicator& comm) {
    Accelerator accelerator(comm, {});
    int step = 0;
    const at::Tensor steps = at::zeros({1}, at::kLong);
    while (true) {
      ++step;
      // Ranks that are threads have one process: the first one gets the signal.
      if (step == 20 && comm.rank() == 0) StopSignals::note(SIGUSR1);
      if (accelerator.should_stop()) break;
      if (step % 64 == 0) comm.barrier();
    }
    EXPECT_GE(step, 20);
    EXPECT_TRUE(accelerator.should_stop()) << "and stays so";
    steps.fill_(step);
    const at::Tensor all = accelerator.gather(steps);
    EXPECT_EQ(all[0].item<int64_t>(), all[1].item<int64_t>());
  });
  EXPECT_FALSE(StopSignals::note(SIGUSR1)) << "nobody listens any more";
}

}  // namespace lockstep::inline v0::accelerator_test
