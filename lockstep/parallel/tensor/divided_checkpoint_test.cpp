// A language model that is saved by ranks that divide it in one way, and goes on where others divide it in another: the
// losses are those of one process that was never interrupted.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/reshard.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/shard/tensor_parallel_lm.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::divided_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using torch::optim::AdamWOptions;

// Steps: of those before the checkpoint and after it, the second sees the optimizer's state.
constexpr int kSaved = 2, kSteps = 4;
constexpr int64_t kSequences = 4, kLength = 9;
constexpr double kTolerance = 1e-10;

LmConfig config_of(bool tied) {
  LmConfig config;
  config.vocab_size = 50;  // 4 parts have 12 or 13 words
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = tied ? 4 : 2;  // of which 4 parts share each
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = tied;
  return config;
}

// Equal values every time, without a generator, which ranks that are threads share; or none worth having.
TransformerLm made(bool tied, bool blank) {
  TransformerLm lm(config_of(tied), LmOptions{.initial = InitialParameters::kNone});
  lm->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double at = 1;
  for (const at::Tensor& p : lm->parameters()) {
    const at::Tensor values = at::arange(p.numel(), at::kDouble).mul_(1.7).add_(at).sin_();
    p.copy_((p.dim() == 1 ? values * 0.2 + 1 : values * 0.3).view(p.sizes()));
    if (blank) p.fill_(0.5);
    at += 13;
  }
  return lm;
}

at::Tensor ids_of(int step) {
  return (at::arange(kSequences * kLength, at::kLong) * 17 + step * 11)
      .pow(2)
      .remainder(50)
      .view({kSequences, kLength});
}

AdamWOptions adam() {
  return AdamWOptions(2e-3).weight_decay(0.1);
}

// The loss of some of a step's sequences.
at::Tensor loss_of(TransformerLm& lm, int step, int64_t first = 0, int64_t count = kSequences) {
  const at::Tensor ids = ids_of(step);
  return lm->forward(ids.narrow(0, first, count), {}, ids.roll(-1, 1).narrow(0, first, count));
}

// What one process computes, which goes through all steps.
struct Expected {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> saved;  // parameters, where the others save
};
Expected expected_of(bool tied) {
  Expected expected;
  TransformerLm lm = made(tied, false);
  torch::optim::AdamW optimizer(lm->parameters(), adam());
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSaved)
      for (const auto& item : lm->named_parameters())
        expected.saved[item.key()] = item.value().detach().clone();
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(lm, step);
    loss.backward();
    optimizer.step();
    expected.losses.push_back(loss.item<double>());
  }
  return expected;
}

using Step = std::function<double(int step)>;  // -> the loss of all ranks' sequences

void expect_losses(const Step& run, int from, int to, const Expected& expected, const char* who) {
  for (int step = from; step < to; ++step) {
    const double loss = expected.losses[static_cast<size_t>(step)];
    EXPECT_NEAR(run(step), loss, kTolerance * loss) << who << ", step " << step;
  }
}

double mean_over(Communicator& comm, const at::Tensor& loss) {
  const at::Tensor mean = loss.detach().clone().view({1});
  comm.all_reduce(mean, ReduceOp::kAvg);
  return mean.item<double>();
}

// Tensor parallelism beside ZeRO over data: 2 x 2 ranks.
class TensorAndZero {
 public:
  TensorAndZero(Communicator& comm, const TransformerLm& start)
      : mesh_(comm, {{"data", comm.size() / 2}, {"tensor", 2}}),
        lm_(tensor_parallel_lm(start, mesh_["tensor"])),
        places_(lm_tensor_parts(lm_->config(), mesh_["tensor"]).places()),
        zero_(mesh_["data"], parameters_of(lm_), adam(),
              {.stage = 1, .bucket_sizes = {3000, 5000}}) {}

  double step(int step) {
    const int64_t count = kSequences / mesh_["data"].size();
    zero_.zero_grad();
    const at::Tensor loss = loss_of(lm_, step, mesh_.place("data") * count, count);
    loss.backward();
    zero_.step();
    return mean_over(mesh_["data"], loss);
  }
  void load(const Checkpoint& stored) {
    if (mesh_.place("data") == 0)  // ranks of a host share one memory
      load_parameters(parameters_of(lm_), places_, stored.model_slices, "c");
    mesh_["data"].barrier();
    zero_.load_state(part_of_state(stored.optimizer, *parameter_names(*lm_, zero_), places_, "c"),
                     "c");
  }
  Checkpoint share(Communicator& comm) {
    Checkpoint share;
    share.model_slices = slices_of_parameters(
        parameters_of(lm_), dealt(places_, mesh_.place("data"), mesh_["data"].size()));
    share.optimizer = slices_of_state(zero_.own_state(), *parameter_names(*lm_, zero_), places_);
    join_groups(comm, share.optimizer);
    return share;
  }

 private:
  Mesh mesh_;
  TransformerLm lm_;
  PlacedParameters places_;
  ZeroOptimizer zero_;
};

// A part of each layer, of the stage's layers, and a plain optimizer of what the stage computes.
class PipeAndTensor {
 public:
  PipeAndTensor(Communicator& comm, const TransformerLm& start)
      : mesh_(comm, {{"pipe", 2}, {"tensor", comm.size() / 2}}),
        schedule_(make_schedule("1f1b", {.stages = 2, .micro_batches = 4})),
        lm_(tensor_parallel_lm(start, mesh_["tensor"])),
        chunks_(lm_, cut_by_costs(std::vector<double>(lm_->units().size(), 1.0), 2)),
        pipeline_(mesh_["pipe"], schedule_, chunks_.chunks_of(schedule_, stage()),
                  {.ties = chunks_.ties_of(schedule_, stage())}) {
    const PlacedParameters all = lm_tensor_parts(lm_->config(), mesh_["tensor"]).places();
    const auto named = lm_->named_parameters();
    std::vector<at::Tensor> tensors;
    for (const std::string& name : chunks_.parameters_of(schedule_, stage())) {
      parameters_.emplace_back(name, named[name]);
      tensors.push_back(named[name]);
      places_[name] = all.at(name);
    }
    // Tied embeddings are the first stage's.
    const bool tied = start->config().tie_word_embeddings;
    if (tied && stage() == 1) places_.at("model.embed_tokens.weight").writes = false;
    optimizer_ = std::make_unique<torch::optim::AdamW>(tensors, adam());
  }

  double step(int step) {
    const at::Tensor ids = ids_of(step).view({-1}), targets = ids_of(step).roll(-1, 1).view({-1});
    const std::vector<std::vector<int64_t>> lengths(kSequences, {kLength});
    optimizer_->zero_grad();
    const double loss = pipeline_.step(
        {.rows = chunks_.begin(lengths),
         .input = [&](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
         .loss =
             [&](const at::Tensor& logits, const MicroBatch& mb) {
               return next_token_loss(logits, targets.narrow(0, mb.first_row, mb.rows)) /
                      kSequences;
             }});
    optimizer_->step();
    return loss;
  }
  void load(const Checkpoint& stored) {
    load_parameters(parameters_, places_, stored.model_slices, "c");
    const SlicedTensors state =
        part_of_state(stored.optimizer, *parameter_names(*lm_, *optimizer_), places_, "c");
    set_optimizer_state(*optimizer_, state.whole(), "c");
  }
  Checkpoint share(Communicator& comm) {
    Checkpoint share;
    share.model_slices = slices_of_parameters(parameters_, places_);
    share.optimizer =
        slices_of_state(optimizer_state(*optimizer_), *parameter_names(*lm_, *optimizer_), places_);
    join_groups(comm, share.optimizer);
    return share;
  }

 private:
  int stage() const { return mesh_.place("pipe"); }

  Mesh mesh_;
  PipelineSchedule schedule_;
  TransformerLm lm_;
  LmChunks chunks_;
  Pipeline pipeline_;
  NamedTensors parameters_;  // of the stage
  PlacedParameters places_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

// Every rank has a part of each layer, and a fused optimizer of it.
class TensorAlone {
 public:
  TensorAlone(Communicator& comm, const TransformerLm& start)
      : lm_(tensor_parallel_lm(start, comm)),
        places_(lm_tensor_parts(lm_->config(), comm).places()),
        optimizer_(lm_->parameters(), adam()) {}

  double step(int step) {
    optimizer_.zero_grad();
    const at::Tensor loss = loss_of(lm_, step);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }
  void load(const Checkpoint& stored) {
    load_parameters(parameters_of(lm_), places_, stored.model_slices, "c");
    const SlicedTensors state =
        part_of_state(stored.optimizer, *parameter_names(*lm_, optimizer_), places_, "c");
    set_optimizer_state(optimizer_, state.whole(), "c");
  }
  Checkpoint share(Communicator& comm) {
    Checkpoint share;
    share.model_slices = slices_of_parameters(parameters_of(lm_), places_);
    share.optimizer =
        slices_of_state(optimizer_state(optimizer_), *parameter_names(*lm_, optimizer_), places_);
    join_groups(comm, share.optimizer);
    return share;
  }

 private:
  TransformerLm lm_;
  PlacedParameters places_;
  optim::FusedAdamW optimizer_;
};

// Steps up to kSaved, and a checkpoint.
template <typename Divided>
void save(int ranks, const fs::path& path, const Expected& expected, bool tied) {
  testing::run_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    Divided divided(comm, made(tied, false));
    expect_losses([&](int step) { return divided.step(step); }, 0, kSaved, expected, "before");
    write_checkpoint(comm, path, divided.share(comm));
  });
}

template <typename Divided>
void go_on(int ranks, const fs::path& path, const Expected& expected, bool tied, const char* who) {
  testing::run_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    Divided divided(comm, made(tied, true));
    divided.load(read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices));
    expect_losses([&](int step) { return divided.step(step); }, kSaved, kSteps, expected, who);
  });
}

// Those who know of no divisions: on `ranks` ranks, each with a sequence, or all of them.
void go_on_whole(int ranks, const fs::path& path, const Expected& expected, bool tied) {
  testing::run_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    TransformerLm lm = made(tied, true);
    const Checkpoint stored = read_checkpoint(path);
    set_module_state(*lm, stored.model.tensors, "c");
    for (const auto& item : lm->named_parameters()) {
      const at::Tensor& saved = expected.saved.at(item.key());
      EXPECT_TRUE(at::allclose(item.value(), saved, 1e-10, 1e-12)) << item.key();
    }
    DistributedDataParallel model(lm, comm);
    torch::optim::AdamW optimizer(lm->parameters(), adam());
    set_optimizer_state(
        optimizer, by_position(stored.optimizer, *parameter_names(*lm, optimizer), "c").whole(),
        "c");
    expect_losses(
        [&](int step) {
          const int64_t count = kSequences / ranks, first = comm.rank() * count;
          const at::Tensor ids = ids_of(step);
          optimizer.zero_grad();
          const at::Tensor loss = model->forward(ids.narrow(0, first, count), {},
                                                 ids.roll(-1, 1).narrow(0, first, count));
          loss.backward();
          optimizer.step();
          return mean_over(comm, loss);
        },
        kSaved, kSteps, expected, ranks == 1 ? "one process" : "ddp");
  });
}

// No rank has the model before: it is born divided, from the slices.
void go_on_zero3(int ranks, const fs::path& path, const Expected& expected, bool tied) {
  testing::run_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    TransformerLm lm = made(tied, true);
    const Checkpoint stored = read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices);
    ZeroOptimizer zero(comm, parameters_of(lm), adam(),
                       {.stage = 3,
                        .bucket_sizes = {3000, 5000},
                        .initial = stored_parts(stored.model_slices, parameters_of(lm), "c")});
    zero.load_state(by_position(stored.optimizer, *parameter_names(*lm, zero), "c"), "c");
    expect_losses(
        [&](int step) {
          zero.zero_grad();
          const at::Tensor loss =
              loss_of(lm, step, comm.rank() * kSequences / ranks, kSequences / ranks);
          loss.backward();
          zero.step();
          return mean_over(comm, loss);
        },
        kSaved, kSteps, expected, "zero3");
  });
}

void go_on_everywhere(const fs::path& path, const Expected& expected, bool tied) {
  go_on_whole(1, path, expected, tied);
  go_on_whole(4, path, expected, tied);
  go_on_zero3(4, path, expected, tied);
  go_on<TensorAlone>(1, path, expected, tied, "tensor of one");
  go_on<TensorAlone>(4, path, expected, tied, "tensor");
  go_on<TensorAndZero>(2, path, expected, tied, "tensor alone under zero1");
  go_on<TensorAndZero>(4, path, expected, tied, "tensor and zero1");
  go_on<TensorAndZero>(8, path, expected, tied, "tensor and zero1 of 8");
  go_on<PipeAndTensor>(2, path, expected, tied, "pipeline");
  go_on<PipeAndTensor>(4, path, expected, tied, "pipeline and tensor");
}

class DividedCheckpoint : public ::testing::TestWithParam<bool> {
 protected:
  bool tied() const { return GetParam(); }
  TestDirectory dir_;
  Expected expected_ = expected_of(GetParam());
};

TEST_P(DividedCheckpoint, OfTensorAndZeroGoesOnEverywhere) {
  save<TensorAndZero>(4, dir_ / "c", expected_, tied());
  go_on_everywhere(dir_ / "c", expected_, tied());
  for (const auto& [file, verdict] : verify_checkpoint(dir_ / "c"))
    EXPECT_EQ(verdict, FileVerdict::kGood) << file;
  // In one file each, as transformers and torch read them.
  reshard_checkpoint(dir_ / "c", dir_ / "one", 1);
  EXPECT_TRUE(fs::exists(dir_ / "one/model.safetensors"));
  go_on_whole(1, dir_ / "one", expected_, tied());
  go_on<TensorAndZero>(4, dir_ / "one", expected_, tied(), "tensor and zero1, from one file");
}

TEST_P(DividedCheckpoint, OfAPipelineOfPartsGoesOnEverywhere) {
  save<PipeAndTensor>(4, dir_ / "c", expected_, tied());
  go_on_everywhere(dir_ / "c", expected_, tied());
}

TEST_P(DividedCheckpoint, OfPartsGoesOnEverywhere) {
  save<TensorAlone>(4, dir_ / "c", expected_, tied());
  go_on_everywhere(dir_ / "c", expected_, tied());
}

// As one process wrote it before anybody divided anything.
TEST_P(DividedCheckpoint, OfOneProcessGoesOnEverywhere) {
  TransformerLm lm = made(tied(), false);
  torch::optim::AdamW optimizer(lm->parameters(), adam());
  for (int step = 0; step < kSaved; ++step) {
    optimizer.zero_grad();
    loss_of(lm, step).backward();
    optimizer.step();
  }
  Checkpoint checkpoint;
  checkpoint.model.tensors = module_state(*lm);
  checkpoint.optimizer = by_name(optimizer_state(optimizer), *parameter_names(*lm, optimizer));
  write_checkpoint(dir_ / "c", checkpoint);
  go_on_everywhere(dir_ / "c", expected_, tied());
}

// In a run's folder, aside while training goes on.
TEST_P(DividedCheckpoint, IsOneOfASeries) {
  testing::run_threads(4, [&](Communicator& comm) {
    at::set_num_threads(1);
    TensorAndZero divided(comm, made(tied(), false));
    CheckpointWriter writer(comm);
    for (int step = 0; step < kSaved; ++step) {
      divided.step(step);
      writer.start(checkpoint_of_step(dir_.path(), step + 1), divided.share(comm),
                   {.snapshot = true, .published = [&, step] {
                      continue_series(dir_.path(), step + 1, {.limit = 2});
                    }});
    }
    divided.step(kSaved);  // the last one is of the step before
    writer.wait();
  });
  EXPECT_EQ(checkpoint_steps(dir_.path()), (std::vector<int64_t>{kSaved - 1, kSaved}));
  go_on_whole(1, dir_ / "last", expected_, tied());
  go_on<TensorAndZero>(4, dir_ / "last", expected_, tied(), "from the last");
}

INSTANTIATE_TEST_SUITE_P(All, DividedCheckpoint, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

// What is saved is not gathered, and what is read is not read whole.
TEST(DividedCheckpointFiles, RanksWriteTheirParts) {
  const TestDirectory dir;
  testing::run_threads(4, [&](Communicator& comm) {
    at::set_num_threads(1);
    TensorAndZero divided(comm, made(false, false));
    divided.step(0);
    const Checkpoint share = divided.share(comm);
    int64_t all = 0;
    for (const at::Tensor& p : made(false, true)->parameters())
      all += static_cast<int64_t>(p.nbytes());
    // Two moments of a half of the divided matrices, by two ranks.
    EXPECT_LT(share.optimizer.bytes(), 2 * all / 4 * 5 / 4);
    EXPECT_LT(share.model_slices.bytes(), all / 4 * 5 / 4);
    write_checkpoint(comm, dir / "c", share);
  });
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const SlicedTensor& columns = *stored.model_slices.find("model.layers.1.mlp.down_proj.weight");
  ASSERT_EQ(columns.slices.size(), 2u);
  EXPECT_EQ(to_string(columns.slices[1].box), "0:32,22:44");
  EXPECT_EQ(stored.model_slices.find("model.norm.weight")->slices.size(), 1u);
  // The part that was saved is a view of the file.
  const SlicedTensor part = box_of(columns, {{0, 22}, {32, 44}});
  EXPECT_EQ(part.whole().const_data_ptr(), columns.slices[1].values.const_data_ptr());
}

TEST(DividedCheckpointFiles, AHeadThatPartsShareIsWrittenOnce) {
  const TestDirectory dir;
  testing::run_threads(4, [&](Communicator& comm) {
    at::set_num_threads(1);
    TensorAlone divided(comm, made(false, false));
    divided.step(0);
    write_checkpoint(comm, dir / "c", divided.share(comm));
  });
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const SlicedTensor& keys = *stored.model_slices.find("model.layers.1.self_attn.k_proj.weight");
  ASSERT_EQ(keys.slices.size(), 2u);
  EXPECT_EQ(to_string(keys.slices[1].box), "8:16,0:32");
  EXPECT_EQ(stored.model_slices.find("model.layers.1.self_attn.q_proj.weight")->slices.size(), 4u);
  EXPECT_EQ(stored.model_slices.bytes(), [] {
    size_t bytes = 0;
    for (const at::Tensor& p : made(false, true)->parameters()) bytes += p.nbytes();
    return static_cast<int64_t>(bytes);
  }());
}

}  // namespace
}  // namespace lockstep::inline v0::divided_checkpoint_test
