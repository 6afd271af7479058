// A language model that ranks divide, on devices that the host plays: the numbers of one process on the CPU, no races,
// and stops of the host where they are said to be alone.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <iostream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/parallel/expert/expert_parallel_lm.h"
#include "lockstep/parallel/tensor/tensor_parts.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/products/values_alike_test.h"
#include "lockstep/shard/tensor_parallel_lm.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/lm_mesh_strategy.h"

namespace lockstep::inline v0::testing::divided_lm_test {
namespace {

constexpr int kSteps = 2;

struct Division {
  const char* name;
  const char* mesh;  // of two ranks
  const char* schedule = "1f1b";
  bool divides_rows = false;
  ContextWay way = ContextWay::kRing;
  int zero = 0;
  bool experts = false;
  int micro_batches = 2;
  // Of the host in forward and backward: a layer with experts asks where a micro-batch's tokens go, once.
  int64_t stops = 0;
};

LmConfig config_of(bool experts) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.hidden_dropout =
      experts ? 0 : 0.1;  // ranks along expert have rows of their own, and masks
  if (experts) {
    config.num_local_experts = 4;
    config.num_experts_per_tok = 2;
    config.router_aux_loss_coef = 0.01;
    config.router_z_loss_coef = 0.001;
  }
  return config;
}

LmRowBatch batch_of(int64_t step) {
  const at::Tensor ids =
      ((torch::arange(4 * 8, at::kLong) + step) * 7).pow(2).remainder(50).view({4, 8});
  return {ids, ids.roll(-1, 1)};
}

struct Trained {
  std::vector<double> losses, norms;
  double evaluated = 0;
  at::Tensor scores;
  std::map<std::string, at::Tensor> parameters;              // of rank 0, on the CPU
  int64_t step_stops = 0, update_stops = 0, operations = 0;  // of the last step, on rank 0
  std::vector<std::string> places;
};

// All rows of a batch are one row's where there is no axis data.
Trained train(Communicator comm, const Division& division) {
  at::set_num_threads(1);
  Parallelism how = parse_parallelism(division.mesh);
  how.schedule = division.schedule;
  how.divides_rows = division.divides_rows;
  how.context_way = division.way;
  how.zero = division.zero;
  how.micro_batches = division.micro_batches;
  ParallelLm model(config_of(division.experts), comm, how, values_alike());
  model.make_optimizer(torch::optim::AdamWOptions(1e-2));
  Trained result;
  for (const DividedParameter& part : model.parameters())
    EXPECT_EQ(part.tensor.device(), comm.device()) << part.name;
  for (int64_t step = 0; step < kSteps; ++step) {
    const LmRowBatch batch = batch_of(step);
    Counting counting;
    const at::Tensor loss = model.step_unread(batch);
    result.step_stops = counting.stops();
    result.operations = counting.operations();
    for (const std::string& place : counting.stop_places()) result.places.push_back(place);
    result.norms.push_back(model.update({.max_norm = 0.5}).grad_norm.value());
    result.update_stops = counting.stops() - result.step_stops;
    result.losses.push_back(loss.item<double>());
  }
  result.evaluated = model.evaluate(batch_of(kSteps));
  result.scores = model.scores(batch_of(kSteps)).losses.cpu();
  for (const auto& [name, tensor] : model.gather()) result.parameters[name] = tensor.cpu();
  return result;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += "\n  " + line;
  return all;
}

class DividedLm : public WithoutRaces, public ::testing::WithParamInterface<Division> {
 protected:
  template <typename Ranks>
  static Trained on_ranks(const Ranks& run, const Division& division) {
    Mutex mutex;
    Trained of_first;
    run([&](Communicator& comm) {
      Trained mine = train(comm, division);
      const MutexLock lock(mutex);
      if (comm.rank() == 0) of_first = std::move(mine);
    });
    return of_first;
  }
  static void expect_equal(const Trained& ours, const Trained& theirs, const char* engine) {
    ASSERT_EQ(ours.losses.size(), theirs.losses.size()) << engine;
    for (size_t i = 0; i < theirs.losses.size(); ++i) {
      EXPECT_NEAR(ours.losses[i], theirs.losses[i], 2e-5) << engine << ", step " << i;
      EXPECT_NEAR(ours.norms[i], theirs.norms[i], 2e-4 * theirs.norms[i]) << engine;
    }
    EXPECT_NEAR(ours.evaluated, theirs.evaluated, 5e-5) << engine;
    EXPECT_TRUE(ours.scores.allclose(theirs.scores, 1e-3, 1e-4)) << engine;
    ASSERT_EQ(ours.parameters.size(), theirs.parameters.size()) << engine;
    for (const auto& [name, tensor] : theirs.parameters)
      EXPECT_TRUE(ours.parameters.at(name).allclose(tensor, 1e-3, 2e-4))
          << engine << ": " << name << " is off by "
          << (ours.parameters.at(name) - tensor).abs().max().item<double>();
  }
};

TEST_P(DividedLm, TrainsAsOneProcessOnTheCpu) {
  const Division& division = GetParam();
  Division alone = division;
  alone.mesh = "data=1", alone.schedule = "1f1b", alone.divides_rows = false;
  const Trained one = on_ranks([](const auto& fn) { run_threads(1, fn); }, alone);
  // Two ranks alone: of several on one device, as threads, one would hold autograd's thread of the device while it
  // waits for another.
  for (const bool staged : {true, false}) {
    const char* const engine = staged ? "staged" : "nccl";
    const Trained divided = on_ranks(
        [&](const auto& fn) { staged ? run_on_staged(2, fn) : run_on_nccl(2, fn); }, division);
    expect_equal(divided, one, engine);
    EXPECT_EQ(divided.step_stops, division.stops) << engine << joined(divided.places);
    EXPECT_LE(divided.update_stops, 1) << engine;  // the norm of clipping
    std::cout << division.name << " over " << engine << ": " << divided.operations
              << " operations a step of rank 0\n";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, DividedLm,
    ::testing::Values(
        Division{.name = "pipe", .mesh = "pipe=2", .micro_batches = 4},
        Division{
            .name = "interleaved", .mesh = "pipe=2", .schedule = "interleaved", .micro_batches = 4},
        Division{.name = "zb_h1", .mesh = "pipe=2", .schedule = "zb-h1", .micro_batches = 4},
        Division{.name = "tensor", .mesh = "tensor=2"},
        Division{.name = "tensor_rows", .mesh = "tensor=2", .divides_rows = true},
        Division{.name = "context", .mesh = "context=2"},
        Division{.name = "heads", .mesh = "context=2", .way = ContextWay::kHeads, .zero = 2},
        Division{.name = "context_units", .mesh = "context=2", .zero = 3},
        Division{.name = "expert", .mesh = "expert=2", .experts = true, .stops = 4}),
    [](const auto& info) { return std::string(info.param.name); });

class DividedLmOnDevices : public WithoutRaces {
 protected:
  // On two ranks as threads, first on the host; what `fn` gives must be near there and on devices.
  template <typename Fn>
  static void expect_as_on_host(const Fn& fn) {
    at::set_num_threads(1);
    Mutex mutex;
    std::map<int, std::vector<double>> host;
    run_threads(2, [&](Communicator& comm) {
      const std::vector<double> values = fn(comm);
      const MutexLock lock(mutex);
      host[comm.rank()] = values;
    });
    const auto compare = [&](Communicator& comm) {
      const std::vector<double> values = fn(comm);
      const MutexLock lock(mutex);
      ASSERT_EQ(values.size(), host.at(comm.rank()).size());
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(values[i], host.at(comm.rank())[i], 2e-5) << i;
    };
    run_on_staged(2, compare);
    run_on_nccl(2, compare);
  }
};

// As the Trainer does it, without clipping: the host only gives.
TEST_F(DividedLmOnDevices, AStrategysStepStopsNoHost) {
  for (const char* mesh : {"pipe=2", "tensor=2", "context=2"}) {
    expect_as_on_host([mesh](Communicator& comm) {
      LmConfig config = config_of(false);
      TransformerLm model(config, LmOptions{.initial = InitialParameters::kNone});
      const auto strategy = make_lm_mesh_strategy(parse_parallelism(mesh));
      strategy->set_up(model.ptr(), comm, values_alike().values);
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(model->parameters());
      const auto optimizer =
          strategy->state().make_optimizer(std::move(groups), torch::optim::AdamWOptions(1e-2));
      std::vector<at::Tensor> losses;
      std::vector<double> values;
      for (int64_t step = 0; step < 3; ++step) {
        const LmRowBatch batch = batch_of(step);
        Counting counted;
        at::Tensor loss;
        strategy->gradients().compute([&] {
          loss = model->loss(batch.ids, batch.targets);
          return loss * 2;
        });
        EXPECT_EQ(loss.device(), comm.device());
        strategy->state().step(*optimizer, {});
        optimizer->zero_grad();
        EXPECT_EQ(counted.stops(), 0) << mesh << joined(counted.stop_places());
        losses.push_back(loss.detach());
      }
      for (const at::Tensor& loss : losses) values.push_back(loss.item<double>());
      return values;
    });
  }
}

struct Sequences {
  int64_t size() const { return 8; }
  data::Batch batch(std::span<const int64_t> indices) const {
    std::vector<at::Tensor> ids, targets;
    for (const int64_t index : indices) {
      const LmRowBatch four = batch_of(index);
      ids.push_back(four.ids[0]);
      targets.push_back(four.targets[0]);
    }
    return {torch::stack(ids), torch::stack(targets)};
  }
};

// The model's names, and batches, stay on the host.
TEST_F(DividedLmOnDevices, AnAcceleratorsStepStopsNoHost) {
  expect_as_on_host([](Communicator& comm) {
    TransformerLm model(config_of(false), LmOptions{.initial = InitialParameters::kNone});
    for (const auto& [name, parameter] : parameters_of(model))
      values_alike().values(name, 0, parameter.detach().view(-1));
    const Sequences sequences;
    data::SequentialSampler order(sequences.size());
    data::Loader batches(sequences, order, {.batch_size = 4});
    Accelerator accelerator(comm, {.strategy = make_lm_mesh_strategy(parse_parallelism("pipe=2"))});
    auto [lm, loader] = accelerator.prepare(model, batches);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->parameters());
    const torch::optim::AdamWOptions adamw(1e-2);
    const auto made = accelerator.strategy().state().make_optimizer(std::move(groups), adamw);
    auto [optimizer] = accelerator.prepare(*made);
    lm.train();
    std::vector<at::Tensor> losses;
    for (auto& batch : loader) {
      Counting counted;
      optimizer.zero_grad();
      const at::Tensor loss =
          accelerator.backward([&] { return lm(batch.input, at::Tensor(), batch.target); });
      optimizer.step();
      EXPECT_EQ(counted.stops(), 0) << joined(counted.stop_places());
      losses.push_back(loss.detach());
    }
    std::vector<double> values;
    for (const at::Tensor& loss : losses) values.push_back(loss.item<double>());
    EXPECT_EQ(values.size(), 2U);
    return values;
  });
}

// By the parts alone, one stop for the norm.
TEST_F(DividedLmOnDevices, ClippingOfPartsReadsTheNormAlone) {
  const auto clipped = [](TransformerLm& lm, auto& parts, const Communicator& comm) {
    lm->to(comm.device());
    const LmRowBatch batch = batch_of(0);
    lm->loss(batch.ids.to(comm.device()), batch.targets.to(comm.device())).backward();
    const NamedTensors mine = parameters_of(lm);
    Counting counted;
    std::vector<double> values{parts.clip_gradients(mine, 0.1)};
    EXPECT_EQ(counted.stops(), comm.device().is_cpu() ? 0 : 1) << joined(counted.stop_places());
    for (const auto& [name, parameter] : mine) {
      const at::Tensor squares = parameter.grad().square().sum();
      values.push_back(squares.item<double>());
    }
    return values;
  };
  expect_as_on_host([&](Communicator& comm) {
    LmConfig config = config_of(false);
    config.hidden_dropout = 0;
    TransformerLm lm = tensor_parallel_lm(config, comm, values_alike().values);
    TensorParts parts = lm_tensor_parts(config, comm);
    return clipped(lm, parts, comm);
  });
  expect_as_on_host([&](Communicator& comm) {
    const LmConfig config = config_of(true);
    TransformerLm lm = expert_parallel_lm(config, comm, comm, values_alike().values);
    TensorParts parts = lm_expert_parts(config, comm);
    return clipped(lm, parts, comm);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing::divided_lm_test
