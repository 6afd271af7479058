// Parameters that are divided between hosts and fetched one unit at a time. Hosts are groups of
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/zero/internal/gathered_units.h"
#include "lockstep/parallel/zero/internal/unit_plan.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kLayers = 4;

NamedTensors named(LayerNet& net) {
  return to_named_tensors(net->named_parameters());
}

// Small buckets: a layer has several.
ZeroOptions in_units(LayerNet& net, std::vector<int> copies) {
  return {.stage = 3,
          .bucket_sizes = {.first = 1200, .rest = 1200},
          .units = {.model = net.ptr()},
          .copies = std::move(copies)};
}

at::Tensor part_of(const at::Tensor& batch, Communicator& comm) {
  return rows_of(batch, comm.rank(), comm.size());
}

at::Tensor loss_of_net(LayerNet& net, int step, int part, int parts,
                       const std::vector<size_t>& way = {}) {
  return torch::nn::functional::mse_loss(net->forward(rows_of(inputs(step), part, parts), way),
                                         rows_of(targets(step), part, parts));
}

TEST(UnitOrder, IsTheModelsAtFirstAndThenThatOfThePassBefore) {
  using internal::UnitOrder;
  using Pass = UnitOrder::Pass;
  UnitOrder order(3);
  EXPECT_EQ(order.after(0, Pass::kForward), 1U);
  EXPECT_EQ(order.after(2, Pass::kForward), std::nullopt);  // 1 was left out
  EXPECT_EQ(order.after(2, Pass::kBackward), 1U);
  EXPECT_EQ(order.after(0, Pass::kBackward), std::nullopt);
  EXPECT_EQ(order.after_step(), std::nullopt);
  EXPECT_EQ(order.after(0, Pass::kForward), 2U);
  EXPECT_EQ(order.after(2, Pass::kForward), 2U);  // that pass's backward
  EXPECT_EQ(order.after(2, Pass::kBackward), 0U);
  EXPECT_EQ(order.after(0, Pass::kBackward), std::nullopt);
  EXPECT_EQ(order.after_step(), 0U);
}

TEST(UnitPlan, SharedParametersStayWhole) {
  LayerNet net(3);
  net->layer(2)->register_parameter("also", net->layer(0)->named_parameters()["scale"]);
  net->layer(1)->parameters()[0].requires_grad_(false);
  std::vector<at::Tensor> given;
  for (const auto& [name, tensor] : named(net)) {
    if (name.starts_with("layers.1.")) continue;  // belongs to another optimizer
    given.push_back(tensor);
  }
  const internal::UnitPlan plan = internal::plan_units(*net, {}, given);
  EXPECT_THAT(plan.names, ElementsAre("layers.0", "layers.2"));
  size_t i = 0;
  for (const auto& [name, tensor] : named(net)) {
    if (name.starts_with("layers.1.")) continue;
    const std::optional<size_t> unit = plan.unit[i++];
    if (name == "layers.0.scale" || name == "layers.2.also" || !name.starts_with("layers."))
      EXPECT_EQ(unit, std::nullopt) << name;
    else
      EXPECT_EQ(unit, name.starts_with("layers.0.") ? 0U : 1U) << name;
  }
}

TEST(UnitPlan, SaysWhatIsWrongWithNames) {
  LayerNet net(2);
  const std::vector<at::Tensor> all = net->parameters();
  const auto refusal = [&](const torch::nn::Module& model, const std::vector<std::string>& names) {
    return message_of<InvalidArgument>([&] { internal::plan_units(model, names, all); });
  };
  EXPECT_THAT(refusal(*net, {"layer.*"}), HasSubstr("is called 'layer.*'"));
  EXPECT_THAT(refusal(*net, {"layers.9"}), HasSubstr("no module 'layers.9'"));
  EXPECT_THAT(refusal(*net, {"layers.*", "layers.1.up"}),
              HasSubstr("'layers.1.up' is below 'layers.1'; name one of them"));
  EXPECT_THAT(refusal(*net, {"layers.*.up"}),
              HasSubstr("'layers.0.up' is one layer of libtorch; name a module"));
  EXPECT_THAT(refusal(*torch::nn::Sequential(torch::nn::Linear(2, 2)), {}),
              HasSubstr("has no list of layers that are Hookable; give their names"));
}

struct Way {
  std::string name;
  std::function<void(ZeroOptions&)> change = [](ZeroOptions&) {};
  bool checkpoint_inside = false, checkpoint_outside = false;
  std::vector<size_t> layers = {};
  int micro = 1;
};

void expect_one_process(const std::vector<int>& copies, const Way& way) {
  constexpr int kSteps = 20;
  LayerNet one(kLayers);
  optim::FusedAdamW reference(one->parameters(), AdamWOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    for (int micro = 0; micro < way.micro; ++micro)
      (loss_of_net(one, way.micro * step + micro, 0, 1, way.layers) / way.micro).backward();
    // Unused parameters count as zero here.
    for (at::Tensor& p : one->parameters()) {
      if (!p.grad().defined()) p.mutable_grad() = torch::zeros_like(p);
    }
    reference.step({.max_norm = 0.5});
  }
  testing::run_threads(static_cast<int>(copies.size()), [&](Communicator& comm) {
    LayerNet net(kLayers);
    const auto checkpointed = [&] {
      checkpoint_layers<at::Tensor(const at::Tensor&, double)>(*net, {.names = {"layers.*"}});
    };
    ZeroOptions options = in_units(net, copies);
    way.change(options);
    if (way.checkpoint_inside) checkpointed();
    ZeroOptimizer optimizer(comm, named(net), AdamWOptions(1e-2), options);
    if (way.checkpoint_outside) checkpointed();
    for (int step = 0; step < kSteps; ++step) {
      for (int micro = 0; micro < way.micro; ++micro)
        (loss_of_net(net, way.micro * step + micro, comm.rank(), comm.size(), way.layers) /
         way.micro)
            .backward();
      optimizer.step({.max_norm = 0.5});
      if (step % 7 == 3) {
        // Evaluation with one unit at a time, in step; and each rank for itself.
        const at::NoGradGuard no_grad;
        net->forward(inputs(0));
        const auto whole = optimizer.whole_parameters();
        for (int i = 0; i < comm.rank(); ++i) net->forward(inputs(i), {3, 0});
      }
    }
    const auto whole = optimizer.whole_parameters();
    EXPECT_LE(distance(net->parameters(), one->parameters()), 1e-10)
        << way.name << " on " << copies.size() << " ranks, rank " << comm.rank();
    EXPECT_GT(optimizer.memory().units, 0);
  });
}

TEST(ZeroUnits, EveryWayIsOneProcess) {
  const std::vector<Way> ways = {
      {.name = "plain"},
      {.name = "kept", .change = [](ZeroOptions& o) { o.units.reshard_after_forward = false; }},
      {.name = "accumulated", .change = [](ZeroOptions& o) { o.accumulate = true; }, .micro = 3},
      {.name = "without overlap", .change = [](ZeroOptions& o) { o.overlap = false; }, .micro = 2},
      {.name = "two of the layers",
       .change = [](ZeroOptions& o) { o.units.names = {"layers.1", "layers.2"}; }},
      {.name = "checkpointed inside", .checkpoint_inside = true},
      {.name = "checkpointed outside", .checkpoint_outside = true},
      {.name = "twice through a layer", .layers = {0, 1, 2, 1, 3, 3}},
      {.name = "not all layers", .layers = {2, 0}},
  };
  for (const std::vector<int>& copies :
       {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}, std::vector<int>{4, 2, 2}}) {
    for (const Way& way : ways) expect_one_process(copies, way);
  }
}

// The bits are the same in two runs, and the same as with a whole copy on every host.
TEST(ZeroUnits, BitsAreThoseOfWholeCopies) {
  std::vector<at::Tensor> first;
  for (const bool units : {false, true, true}) {
    testing::run_threads(4, [&](Communicator& comm) {
      LayerNet net(kLayers, 10, at::kFloat);
      ZeroOptions options = in_units(net, {0, 0, 1, 1});
      // One bucket per unit in both cases, because gradients are summed bucket by bucket.
      if (!units) options.units = {};
      ZeroOptimizer optimizer(comm, named(net), AdamWOptions(1e-2), options);
      for (int step = 0; step < 5; ++step) {
        torch::nn::functional::mse_loss(net->forward(part_of(inputs(step, at::kFloat), comm)),
                                        part_of(targets(step, at::kFloat), comm))
            .backward();
        optimizer.step();
      }
      const auto whole = optimizer.whole_parameters();
      if (comm.rank() != 0) return;
      if (first.empty()) first = copies_of(net->parameters());
      EXPECT_TRUE(same_bits(net->parameters(), first)) << units;
    });
  }
}

// A module without hooks.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{7, 7}, second{7, 7};
};
TORCH_MODULE(Block);

TEST(ZeroUnits, ChildrenOfASequentialAreUnitsByTheirNames) {
  const auto make = [] {
    torch::nn::Sequential model(Block(), Block(), torch::nn::Linear(7, 5));
    model->to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters())
      p.copy_(torch::arange(p.numel(), at::kDouble).sin().mul(0.4).view(p.sizes()));
    return model;
  };
  testing::run_threads(4, [&](Communicator& comm) {
    torch::nn::Sequential one = make(), net = make();
    optim::FusedSGD reference(one->parameters(), SGDOptions(0.1));
    ZeroOptimizer optimizer(
        comm, to_named_tensors(net->named_parameters()), SGDOptions(0.1),
        {.stage = 3, .units = {.model = net.ptr(), .names = {"0", "1"}}, .copies = {0, 0, 1, 1}});
    EXPECT_GT(optimizer.memory().units, 0);
    for (int step = 0; step < 5; ++step) {
      reference.zero_grad();
      torch::nn::functional::mse_loss(one->forward(inputs(step)), targets(step)).backward();
      reference.step();
      torch::nn::functional::mse_loss(net->forward(part_of(inputs(step), comm)),
                                      part_of(targets(step), comm))
          .backward();
      optimizer.step();
    }
    const auto whole = optimizer.whole_parameters();
    EXPECT_LE(distance(net->parameters(), one->parameters()), 1e-10);
  });
}

TEST(ZeroUnits, OneHostFetchesNothing) {
  testing::run_threads(3, [](Communicator& comm) {
    LayerNet net(kLayers);
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), in_units(net, {}));
    loss_of_net(net, 0, comm.rank(), 3).backward();
    optimizer.step();
    EXPECT_EQ(optimizer.memory().units, 0);
    EXPECT_EQ(optimizer.whole_parameters(), nullptr);
    EXPECT_TRUE(net->layer(0)->parameters()[0].isfinite().all().item<bool>());
  });
}

// Rajbhandari et al.: everything that a rank keeps is divided by the number of ranks, except for
// the ends.
TEST(ZeroUnits, MemoryIsDividedAmongAllRanks) {
  testing::run_threads(4, [](Communicator& comm) {
    LayerNet net(8, 60);
    ZeroOptions options = in_units(net, {0, 0, 1, 1});
    options.bucket_sizes = {.first = 1 << 20, .rest = 1 << 20};
    ZeroOptimizer optimizer(comm, named(net), AdamWOptions(1e-3), options);
    EXPECT_EQ(optimizer.planned_memory().state, 2 * optimizer.planned_memory().gradients);
    double layers = 0, ends = 0;
    for (const auto& [name, tensor] : named(net))
      (name.starts_with("layers.") ? layers : ends) += static_cast<double>(tensor.nbytes());
    loss_of_net(net, 0, comm.rank(), comm.size()).backward();
    optimizer.step();
    const ZeroMemory memory = optimizer.memory();
    EXPECT_EQ(memory, optimizer.planned_memory());
    EXPECT_NEAR(static_cast<double>(memory.parameters), layers / 4 + ends / 2, 0.02 * layers / 4);
    // The other half of two layers, shared by two ranks.
    EXPECT_NEAR(static_cast<double>(memory.units), 2 * layers / 8 / 2 / 2, 0.02 * layers / 8);
  });
}

TEST(ZeroUnits, WhoReadsAParameterThatIsAwayIsTold) {
  testing::run_threads(2, [](Communicator& comm) {
    LayerNet net(kLayers);
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), in_units(net, {0, 1}));
    const at::Tensor weight = net->layer(2)->named_parameters()["up.weight"];
    const auto told = [&] {
      EXPECT_THAT(message_of<c10::Error>([&] { weight.sum(); }),
                  HasSubstr("the parameters of 'layers.2' are here only while"));
    };
    told();
    {
      const auto whole = optimizer.whole_parameters();
      EXPECT_TRUE(weight.isfinite().all().item<bool>());
      EXPECT_THAT(message_of<InvalidArgument>([&] {
                    loss_of_net(net, 0, comm.rank(), 2).backward();
                    optimizer.step();
                  }),
                  HasSubstr("step() while rank(s) 0, 1 hold the parameters"));
    }
    loss_of_net(net, 0, comm.rank(), 2).backward();
    optimizer.step();
    told();
    EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{30, 10}));
  });
}

// Within a host and between hosts.
TEST(ZeroUnits, RanksThatTakeDifferentWaysAreNamed) {
  for (const std::vector<int>& copies : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
    for (const int other : {1, static_cast<int>(copies.size()) - 1}) {
      std::atomic<int> told{0};
      testing::run_threads(static_cast<int>(copies.size()), [&](Communicator& comm) {
        LayerNet net(kLayers);
        ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), in_units(net, copies));
        const auto way =
            comm.rank() == other ? std::vector<size_t>{0, 2, 3} : std::vector<size_t>{0, 1, 3};
        try {
          for (int i = 0; i < 2; ++i) loss_of_net(net, 0, comm.rank(), comm.size(), way).backward();
          ADD_FAILURE() << "rank " << comm.rank() << " went through";
        } catch (const Error& error) {
          // Some ranks learn it from the ranks that saw it.
          if (std::string(error.what()).find("unit layers.") != std::string::npos) ++told;
        }
      });
      EXPECT_GE(told, 1) << copies.size() << " ranks, rank " << other;
    }
  }
}

TEST(ZeroUnits, WhatThrewCanBeRepeated) {
  testing::run_threads(4, [](Communicator& comm) {
    LayerNet net(kLayers), plain(kLayers);
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), in_units(net, {0, 0, 1, 1}));
    const auto handle =
        wrap_forward(*net, "layers.2", [](const Forward& forward, const at::Tensor& x) {
          const at::Tensor y = forward(x);
          if (x.requires_grad() && x.size(0) == 1) throw Error("in forward");
          return y;
        });
    for (int step = 0; step < 3; ++step) {
      EXPECT_THROW(net->forward(inputs(step).slice(0, 0, 1)), Error);
      at::Tensor out = net->forward(part_of(inputs(step), comm));
      out.register_hook([](const at::Tensor&) -> at::Tensor { throw Error("at the beginning"); });
      EXPECT_THROW(out.sum().backward(), Error);
      at::Tensor h = part_of(inputs(step), comm).clone().requires_grad_();
      h.register_hook([](const at::Tensor&) -> at::Tensor { throw Error("at the end"); });
      EXPECT_THROW(net->forward(h).sum().backward(), Error);
      optimizer.zero_grad();
      loss_of_net(net, step, comm.rank(), comm.size()).backward();
      optimizer.step();
    }
    const auto whole = optimizer.whole_parameters();
    optim::FusedSGD reference(plain->parameters(), SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      loss_of_net(plain, step, 0, 1).backward();
      reference.step();
    }
    EXPECT_LE(distance(net->parameters(), plain->parameters()), 1e-10);
  });
}

// A unit's backward has begun and not ended: leave_out() ends the step, as after any backward that
// threw; the same holds for a backward that stops at an activation.
TEST(ZeroUnits, ABackwardThatEndsWithinAUnitHoldsNothing) {
  testing::run_threads(4, [](Communicator& comm) {
    LayerNet net(kLayers), plain(kLayers);
    ZeroOptions options = in_units(net, {0, 0, 1, 1});
    options.accumulate = true;
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), options);
    bool throws = false;
    const auto handle =
        wrap_forward(*net, "layers.2.up", [&throws](const Forward& forward, const at::Tensor& x) {
          const at::Tensor y = forward(x);
          if (throws)
            y.register_hook([](const at::Tensor&) -> at::Tensor { throw Error("in the midst"); });
          return y;
        });
    for (int step = 0; step < 3; ++step) {
      loss_of_net(net, step, comm.rank(), comm.size()).backward();
      throws = true;
      const at::Tensor loss = loss_of_net(net, step, comm.rank(), comm.size());
      throws = false;
      EXPECT_THROW(loss.backward(), Error);
      optimizer.leave_out();
      loss_of_net(net, step, comm.rank(), comm.size()).backward();
      optimizer.step();
    }
    const auto whole = optimizer.whole_parameters();
    optim::FusedSGD reference(plain->parameters(), SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      loss_of_net(plain, step, 0, 1).backward();
      reference.step();
    }
    EXPECT_LE(distance(net->parameters(), plain->parameters()), 1e-10);
  });
}

// After an evaluation the next pass through the units releases all others; a step waits for no
// holder.
TEST(ZeroUnits, WholeParametersDoNotStay) {
  testing::run_threads(4, [](Communicator& comm) {
    LayerNet net(kLayers);
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), in_units(net, {0, 0, 1, 1}));
    const auto away = [&](size_t layer) {
      try {
        return net->layer(layer)->parameters()[0].sum().item<double>() < -1e300;
      } catch (const c10::Error&) {
        return true;
      }
    };
    {
      const auto whole = optimizer.whole_parameters();
      net->forward(part_of(inputs(0), comm));
      EXPECT_FALSE(away(3));
      EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }),
                  HasSubstr("step() while rank(s) 0, 1, 2, 3 hold the parameters"));
    }
    EXPECT_FALSE(away(3));
    std::vector<bool> seen;
    const auto handle =
        wrap_forward(*net, "layers.0", [&](const Forward& forward, const at::Tensor& x) {
          const at::Tensor y = forward(x);
          for (size_t i = 0; i < 4; ++i) seen.push_back(away(i));
          return y;
        });
    loss_of_net(net, 0, comm.rank(), comm.size()).backward();
    // It runs outside the unit's own hook, but the ranks have not met since.
    EXPECT_EQ(seen, (std::vector<bool>{false, true, true, true}));
    optimizer.step();
  });
}

// Each rank writes its own part; the parameters' old values are neither read nor sent.
TEST(ZeroPlacement, RanksWriteTheirParts) {
  LayerNet plain(kLayers);
  const auto value = [](const std::string& name, int64_t i) {
    return std::sin(0.7 * static_cast<double>(i) + static_cast<double>(name.size()));
  };
  for (const auto& [stage, one_copy, copies] :
       std::vector<std::tuple<int, bool, std::vector<int>>>{{0, true, {}},
                                                            {1, true, {}},
                                                            {1, false, {}},
                                                            {3, true, {}},
                                                            {3, true, {0, 0, 1}},
                                                            {-3, true, {0, 0, 1}}}) {
    std::atomic<int64_t> asked{0};
    testing::run_threads(3, [&](Communicator& comm) {
      LayerNet net(kLayers);
      ZeroOptions options = in_units(net, copies);
      if (stage >= 0) options.units = {};
      options.stage = std::abs(stage);
      options.one_copy = one_copy;
      options.initial = [&](const std::string& name, int64_t begin, const at::Tensor& part) {
        asked += part.numel();
        for (int64_t i = 0; i < part.numel(); ++i)
          part.mutable_data_ptr<double>()[i] = value(name, begin + i);
      };
      {
        const at::NoGradGuard no_grad;
        for (at::Tensor& p : net->parameters()) p.fill_(comm.rank() + 7);
      }
      ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), options);
      const auto whole = optimizer.whole_parameters();
      for (const auto& [name, tensor] : named(net)) {
        const at::Tensor flat = tensor.detach().flatten();
        for (int64_t i = 0; i < flat.numel(); i += 7)
          ASSERT_EQ(flat[i].item<double>(), value(name, i)) << stage << " " << name << " " << i;
      }
    });
    int64_t all = 0;
    for (const at::Tensor& p : plain->parameters()) all += p.numel();
    EXPECT_EQ(asked, stage == 0 ? 3 * all : all);
  }
}

// A module that cannot be hooked is reported before a parameter moves.
TEST(ZeroUnits, ABadNameLeavesTheModelAsItWas) {
  testing::run_threads(2, [](Communicator& comm) {
    LayerNet net(kLayers);
    ZeroOptions options = in_units(net, {0, 1});
    options.units.names = {"layers"};
    EXPECT_THROW(ZeroOptimizer(comm, named(net), SGDOptions(0.1), options), InvalidArgument);
    options.units.names = {"layers.*"};
    ZeroOptimizer optimizer(comm, named(net), SGDOptions(0.1), options);
    loss_of_net(net, 0, comm.rank(), comm.size()).backward();
    optimizer.step();
  });
}

TEST(ZeroUnits, SaysWhatItCannotDo) {
  testing::run_threads(2, [](Communicator& comm) {
    LayerNet net(1);
    const auto refusal = [&](const std::function<void(ZeroOptions&)>& change) {
      ZeroOptions options = in_units(net, {0, 1});
      change(options);
      return message_of<InvalidArgument>(
          [&] { ZeroOptimizer(comm, named(net), SGDOptions(1), options); });
    };
    EXPECT_THAT(refusal([](ZeroOptions& o) { o.stage = 2; }), HasSubstr("units are for stage 3"));
    EXPECT_THAT(refusal([](ZeroOptions& o) { o.copies = {0}; }),
                HasSubstr("copies has 1 numbers for 2 ranks"));
    EXPECT_THAT(refusal([](ZeroOptions& o) { o.units.names = {"nothing"}; }),
                HasSubstr("no module 'nothing'"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
