// The planner's formulas (plan/estimate) for the language model, beside the model itself: what a rank
// keeps of parameters, gradients and optimizer to the byte, and what a layer's forward keeps.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/plan/estimate/memory.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/lm_mesh_strategy.h"

namespace lockstep::inline v0::memory_formula_test {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int64_t kTokens = 32;

struct Way {
  std::string mesh = {};
  int ranks = 1;
  int zero = 0;
  int64_t experts = 0;
  bool tied = false;
  bool divides_rows = false;
  bool recomputes = false;
  int64_t layers = 4;
  int64_t key_value_heads = 2;
};

LmConfig config_of(const Way& way) {
  LmConfig config;
  config.vocab_size = 256;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.num_hidden_layers = way.layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = way.key_value_heads;
  config.max_position_embeddings = kTokens;
  config.tie_word_embeddings = way.tied;
  config.num_local_experts = way.experts;
  return config;
}

Parallelism how_of(const Way& way) {
  Parallelism how = parse_parallelism(way.mesh.empty() ? "data=1" : way.mesh);
  how.zero = way.zero;
  how.divides_rows = way.divides_rows;
  how.micro_batches = how.size_of("pipe") > 1 ? 2 : 1;
  // Half of the layers each; the first stage has the embeddings, too, and the last one norm and head.
  if (how.size_of("pipe") == 2)
    how.cut = {static_cast<int>(way.layers / 2) + 1, static_cast<int>(way.layers / 2) + 2};
  return how;
}

plan::Layout layout_of(const Way& way, int64_t batch = 4) {
  const Parallelism how = how_of(way);
  plan::Layout layout;
  layout.data = how.size_of("data");
  layout.pipe = how.size_of("pipe");
  layout.context = how.size_of("context");
  layout.expert = how.size_of("expert");
  layout.tensor = how.size_of("tensor");
  layout.zero = way.zero;
  layout.micro_batch = batch / how.micro_batches;
  layout.global_batch = batch * layout.data * layout.expert;
  layout.sequence = kTokens;
  layout.precision = plan::Precision::kFloat32;
  layout.masters = false;
  layout.activations = way.recomputes ? plan::Activations::kRecomputed : plan::Activations::kKept;
  layout.divides_rows = way.divides_rows;
  return layout;
}

plan::ModelShape shape_of(const Way& way) {
  return plan::read_model_shape(to_json(config_of(way)), "config.json");
}

void give_value(const std::string& /*name*/, int64_t begin, const at::Tensor& part) {
  part.copy_(at::arange(begin, begin + part.numel(), at::kDouble).mul(1.3).sin().mul(0.05));
}

// The strategy of this rank with an optimizer, for `then`.
template <typename Then>
void with_strategy(const Way& way, Communicator& comm, bool adam, const Then& then) {
  LmMeshOptions options;
  if (way.recomputes) {
    options.prepare = [](TransformerLm& lm) {
      checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}});
    };
  }
  const auto strategy = make_lm_mesh_strategy(how_of(way), options);
  TransformerLm lm(config_of(way), LmOptions{.initial = InitialParameters::kNone});
  strategy->set_up(lm.ptr(), comm, give_value);
  const auto optimizer = adam ? strategy->state().make_optimizer(
                                    optim::decay_groups(*lm, AdamWOptions(0.1)), AdamWOptions(0.1))
                              : strategy->state().make_optimizer(
                                    optim::decay_groups(*lm, SGDOptions(0.1)), SGDOptions(0.1));
  then(*strategy, lm, *optimizer);
}

TEST(MemoryFormula, StateIsTheModelsToTheByte) {
  for (const Way& way :
       {Way{}, Way{.tied = true}, Way{.experts = 4}, Way{.mesh = "data=2", .ranks = 2},
        Way{.mesh = "data=2", .ranks = 2, .zero = 1}, Way{.mesh = "pipe=2", .ranks = 2},
        Way{.mesh = "pipe=2", .ranks = 2, .tied = true}, Way{.mesh = "tensor=2", .ranks = 2},
        Way{.mesh = "context=2", .ranks = 2}, Way{.mesh = "expert=2", .ranks = 2, .experts = 4},
        Way{.mesh = "data=2,tensor=2", .ranks = 4},
        Way{.mesh = "data=2,tensor=2", .ranks = 4, .zero = 1},
        Way{.mesh = "pipe=2,tensor=2", .ranks = 4}}) {
    for (const bool adam : {true, false}) {
      plan::Layout layout = layout_of(way);
      layout.optimizer = adam ? plan::Optimizer::kAdamW : plan::Optimizer::kSgd;
      // From stage 1 of ZeRO on the ranks of a host have one copy.
      const int sharers = way.zero > 0 ? layout.data : 1;
      const plan::StageMemory formula = plan::estimate_memory(
          shape_of(way), layout, plan::known_stack("lockstep"), nullptr, sharers);
      testing::run_threads(way.ranks, [&](Communicator& comm) {
        with_strategy(way, comm, adam, [&](Strategy& strategy, TransformerLm&, auto& optimizer) {
          const StepMemory own = strategy.state().planned_memory(optimizer);
          const int stage = comm.rank() * layout.pipe / comm.size();
          const plan::MemoryParts& parts = formula.stages[static_cast<size_t>(stage)];
          SCOPED_TRACE("mesh '" + way.mesh + "', zero " + std::to_string(way.zero) +
                       (way.tied ? ", tied" : "") + (way.experts > 0 ? ", experts" : "") +
                       ", rank " + std::to_string(comm.rank()) + (adam ? ", adamw" : ", sgd"));
          EXPECT_EQ(static_cast<double>(own.parameters), parts.parameters);
          EXPECT_EQ(static_cast<double>(own.gradients), parts.gradients);
          EXPECT_EQ(static_cast<double>(own.state), parts.optimizer);
        });
      });
    }
  }
}

// What the forward of one more layer keeps, on rank 0.
int64_t of_one_layer(Way way, int64_t batch) {
  int64_t bytes[2] = {};
  for (const int more : {0, 1}) {
    way.layers = 2 + 2 * more;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      with_strategy(way, comm, true, [&](Strategy& strategy, TransformerLm& lm, auto&) {
        const at::Tensor ids =
            at::arange(batch * kTokens, at::kLong).remainder(251).view({batch, -1});
        const StepTrace trace = strategy.gradients().tried(
            [&] { return StrategyGradients::TriedLoss{lm->loss(ids, ids.clone())}; });
        if (comm.rank() == 0) bytes[more] = trace.activations;
      });
    });
  }
  // A stage of a pipeline has half of the layers.
  return (bytes[1] - bytes[0]) / (way.mesh == "pipe=2" ? 1 : 2);
}

TEST(MemoryFormula, ALayerKeepsWhatTheFormulaSays) {
  at::set_num_threads(1);
  constexpr int64_t kBatch = 4;
  for (const Way& way : {Way{}, Way{.recomputes = true}, Way{.mesh = "tensor=2", .ranks = 2},
                         Way{.mesh = "tensor=4", .ranks = 4, .key_value_heads = 4},
                         Way{.mesh = "tensor=2", .ranks = 2, .divides_rows = true},
                         Way{.mesh = "pipe=2", .ranks = 2}, Way{.mesh = "context=2", .ranks = 2}}) {
    const plan::Layout layout = layout_of(way, kBatch);
    const double said =
        plan::layer_activation_bytes(shape_of(way), 0, layout, plan::known_stack("lockstep"));
    const int held = layout.pipe;  // micro-batches on the first stage at once
    EXPECT_EQ(static_cast<double>(of_one_layer(way, kBatch)), held * said)
        << "mesh '" << way.mesh << "'" << (way.recomputes ? ", recomputed" : "")
        << (way.divides_rows ? ", divided rows" : "");
  }
}

}  // namespace
}  // namespace lockstep::inline v0::memory_formula_test
