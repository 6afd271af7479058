// The memory that is predicted before the first step, beside what libtorch's allocators and the
// communicators have given out in the steps: for every way of dividing a model.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/data/loader.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/lm_mesh_strategy.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/supervised_task.h"

namespace lockstep::inline v0::memory_prediction_test {
namespace {

constexpr int64_t kTokens = 32;
constexpr int64_t kVocabulary = 240;

// One way of training.
struct Way {
  std::string name;
  std::string strategy = "ddp";  // of a mesh: of ZeRO's stages
  std::string mesh = {};         // empty: no axes but data
  int ranks = 2;
  int64_t batch = 8;
  std::string schedule = "1f1b";
  bool divides_rows = false;
  bool recomputes = false;
  optim::OptimizerSpec optimizer = {};
  optim::Precision precision = optim::Precision::kFloat32;
  int64_t accumulation = 1;
  double max_norm = 1;
  int64_t experts = 0;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

LmConfig config_of(const Way& way) {
  LmConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.max_position_embeddings = kTokens;
  config.num_local_experts = way.experts;
  config.router_aux_loss_coef = way.experts > 0 ? 0.02 : 0;
  return config;
}

struct Tokens {
  int64_t count = 0;
  int64_t size() const { return count; }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor first =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    const at::Tensor all =
        at::arange(kTokens + 1, at::kLong).add(first.unsqueeze(1)).mul(7).remainder(kVocabulary);
    return {all.narrow(1, 0, kTokens).contiguous(), all.narrow(1, 1, kTokens).contiguous()};
  }
};

struct LmLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    return {.loss = model(batch.input, at::Tensor(), batch.target),
            .logits = {},
            .labels = batch.target};
  }
};

void recompute(TransformerLm& lm) {
  checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}});
}

std::shared_ptr<Strategy> strategy_of(const Way& way) {
  if (way.mesh.empty()) return make_strategy(way.strategy);
  Parallelism how = parse_parallelism(way.mesh);
  how.schedule = way.schedule;
  how.divides_rows = way.divides_rows;
  if (way.strategy.starts_with("zero")) how.zero = way.strategy.back() - '0';
  if (how.size_of("pipe") > 1) how.micro_batches = static_cast<int>(way.batch / 2);
  LmMeshOptions options;
  if (way.recomputes) options.prepare = recompute;
  return make_lm_mesh_strategy(how, options);
}

// The same values on all ranks, without the generator that threads share.
void give_value(const std::string& /*name*/, int64_t begin, const at::Tensor& part) {
  part.copy_(at::arange(begin, begin + part.numel(), at::kDouble).mul(1.3).sin().mul(0.05));
}

struct Found {
  StepMemory predicted, allocated;
  // By the allocators: the most since before the model was made, in the steps after the first,
  // without batches and data.
  int64_t truth = 0;
};

// Of a pipeline's stage, the parameters of the other stages are names that keep their addresses.
int64_t names_of(const Strategy& strategy) {
  const auto parallel = parallel_lm_of(strategy);
  if (!parallel) return 0;
  std::set<const void*> own;
  for (const DividedParameter& part : parallel->parameters())
    own.insert(part.tensor.storage().data());
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parallel->module()->parameters()) {
    if (own.insert(parameter.storage().data()).second)
      bytes += static_cast<int64_t>(parameter.storage().nbytes());
  }
  return bytes;
}

Found train(const Way& way, Communicator& comm) {
  LiveBytes live;
  const auto strategy = strategy_of(way);
  TransformerLm lm(config_of(way), LmOptions{.initial = InitialParameters::kNone});
  if (way.mesh.empty() && way.recomputes) recompute(lm);
  TrainSpec spec;
  spec.data.batch_size = way.batch;
  spec.step = {.optimizer = way.optimizer,
               .precision = way.precision,
               .max_norm = way.max_norm,
               .accumulation = way.accumulation};
  ModelOnRanks run({.model = lm.ptr(),
                    .strategy = strategy,
                    .comm = comm,
                    .step = spec.step,
                    .initial = give_value});
  const Tokens tokens{way.batch * 4 * way.accumulation * comm.size()};
  const DealtSamples dealt = deal(spec.data, tokens.size(), *strategy, comm);
  data::Loader loader(tokens, *dealt.sampler, loader_options(spec.data, dealt, at::kCPU));
  StrategyModel<TransformerLm> model(lm, strategy);
  LmLoss loss;
  SupervisedTask<TransformerLm, Tokens, LmLoss> supervised(
      {.model = model,
       .loader = loader,
       .loss = loss,
       .step = {.run = run, .spec = spec, .dealt = dealt}});
  const TrainTask task = supervised.task({});
  Found found{.predicted = strategy->state().planned_memory(run.optimizer()), .allocated = {}};
  found.predicted.set(supervised.plan().bytes);
  task.begin_epoch(0, 0);
  const StepResult first = task.step();
  found.allocated = strategy->state().memory(run.optimizer());
  found.allocated.set(first.memory);
  live.forget_most();
  for (int i = 0; i < 2; ++i) (void)task.step();
  // Of batches there are the present one and the next.
  const int64_t batches = 2 * 2 * way.batch * kTokens * 8;
  found.truth = live.most() - names_of(*strategy) - batches;
  return found;
}

class Memory : public ::testing::TestWithParam<Way> {};

// The share of what is allocated that the prediction lacks: the batches after the first one send their tokens to other
// experts, so that a rank may get more of them.
double lacking(const std::string& way) {
  return way == "expert" ? 0.04 : 0;
}

TEST_P(Memory, IsPredictedToTwoPercentAndNeverBelow) {
  const Way& way = GetParam();
  at::set_num_threads(1);
  testing::run_threads(way.ranks, [&](Communicator& comm) {
    const Found found = train(way, comm);
    SCOPED_TRACE(way.name + ", rank " + std::to_string(comm.rank()) + ": predicted " +
                 to_json(found.predicted).dump() + ", allocated " +
                 to_json(found.allocated).dump() + ", truth " + std::to_string(found.truth));
    const RankMemory memory{found.predicted, found.allocated};
    EXPECT_GE(memory.predicted.total(), memory.allocated.total());
    EXPECT_LE(memory.difference(), 0.02);
    EXPECT_GT(memory.allocated.activations, 0);
    EXPECT_EQ(memory.predicted.parameters, memory.allocated.parameters);
    EXPECT_EQ(memory.predicted.gradients, memory.allocated.gradients);
    EXPECT_EQ(memory.predicted.state, memory.allocated.state);
    EXPECT_EQ(memory.predicted.buffers, memory.allocated.buffers);
    const auto total = static_cast<double>(memory.predicted.total());
    EXPECT_GE(total, (1 - lacking(way.name)) * static_cast<double>(found.truth));
    EXPECT_LE(total, 1.02 * static_cast<double>(found.truth));
  });
}

const optim::OptimizerSpec kSgd{.type = optim::OptimizerType::kSgd, .lr = 0.1};
const optim::OptimizerSpec kMomentum{
    .type = optim::OptimizerType::kSgd, .lr = 0.1, .momentum = 0.9};

INSTANTIATE_TEST_SUITE_P(
    Of, Memory,
    ::testing::Values(
        Way{.name = "one", .ranks = 1}, Way{.name = "ddp"}, Way{.name = "ddp4", .ranks = 4},
        Way{.name = "large_batch", .batch = 64}, Way{.name = "odd_batch", .batch = 7},
        Way{.name = "sgd", .optimizer = kSgd}, Way{.name = "momentum", .optimizer = kMomentum},
        Way{.name = "average", .strategy = "average"},
        Way{.name = "average_accumulating", .strategy = "average", .accumulation = 3},
        Way{.name = "horovod", .strategy = "horovod"},
        Way{.name = "accumulating", .accumulation = 2},
        Way{.name = "bf16", .precision = optim::Precision::kBFloat16},
        Way{.name = "fp16", .precision = optim::Precision::kFloat16},
        Way{.name = "recomputed", .recomputes = true}, Way{.name = "zero1", .strategy = "zero1"},
        Way{.name = "zero2", .strategy = "zero2"}, Way{.name = "zero3", .strategy = "zero3"},
        Way{.name = "fsdp", .strategy = "fsdp"},
        Way{.name = "zero2_4_ranks", .strategy = "zero2", .ranks = 4},
        Way{.name = "zero3_sgd", .strategy = "zero3", .optimizer = kSgd},
        Way{.name = "zero1_bf16", .strategy = "zero1", .precision = optim::Precision::kBFloat16},
        Way{.name = "zero1_accumulating", .strategy = "zero1", .accumulation = 3},
        Way{.name = "zero2_accumulating", .strategy = "zero2", .accumulation = 2},
        Way{.name = "experts", .experts = 4}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    OverAMesh, Memory,
    ::testing::Values(Way{.name = "pipe", .mesh = "pipe=2"},
                      Way{.name = "pipe4", .mesh = "pipe=4", .ranks = 4},
                      Way{.name = "gpipe", .mesh = "pipe=2", .schedule = "gpipe"},
                      Way{.name = "interleaved", .mesh = "pipe=2", .schedule = "interleaved"},
                      Way{.name = "zero_bubble", .mesh = "pipe=2", .schedule = "zb-h1"},
                      Way{.name = "tensor", .mesh = "tensor=2"},
                      Way{.name = "tensor_rows", .mesh = "tensor=2", .divides_rows = true},
                      Way{.name = "tensor_recomputed", .mesh = "tensor=2", .recomputes = true},
                      Way{.name = "context", .mesh = "context=2"},
                      Way{.name = "expert", .mesh = "expert=2", .experts = 4},
                      Way{.name = "data_tensor", .mesh = "data=2,tensor=2", .ranks = 4},
                      Way{.name = "data_tensor_zero1",
                          .strategy = "zero1",
                          .mesh = "data=2,tensor=2",
                          .ranks = 4},
                      Way{.name = "data_tensor_zero3",
                          .strategy = "zero3",
                          .mesh = "data=2,tensor=2",
                          .ranks = 4},
                      Way{.name = "pipe_tensor", .mesh = "pipe=2,tensor=2", .ranks = 4},
                      // Ranks that are threads share autocast's casts.
                      Way{.name = "mesh_of_one_bf16",
                          .mesh = "data=1",
                          .ranks = 1,
                          .precision = optim::Precision::kBFloat16},
                      Way{.name = "pipe_recomputed", .mesh = "pipe=2", .recomputes = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::inline v0::memory_prediction_test
