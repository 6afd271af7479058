// Pipelines of models with experts: their routers learn the same as in one process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::lm_experts_pipeline_test {
namespace {

LmConfig with_experts(int64_t shared) {
  LmConfig config;
  config.vocab_size = 30;
  config.hidden_size = 16;
  config.intermediate_size = 12;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 2;
  config.max_position_embeddings = 32;
  config.num_local_experts = 4;
  config.router_aux_loss_coef = 0.5;
  config.router_z_loss_coef = 0.1;
  config.router_aux_loss_by_layer = true;
  config.shared_expert_intermediate_size = shared;
  return config;
}

// Made without a generator, which ranks that are threads would share.
TransformerLm model_of(const LmConfig& config, at::ScalarType type) {
  TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
  lm->to(type);
  const at::NoGradGuard no_grad;
  double at = 1;
  for (const at::Tensor& p : lm->parameters()) {
    const at::Tensor values = at::arange(p.numel(), at::kDouble).mul_(1.7).add_(at).sin_();
    p.copy_((p.dim() == 1 ? values * 0.2 + 1 : values * 0.3).view(p.sizes()));
    at += 13;
  }
  return lm;
}

TEST(LmExpertsPipeline, GradientsAreOneProcesss) {
  at::set_num_threads(1);
  const std::vector<std::vector<int64_t>> lengths{{5, 3}, {7}, {2, 6, 4}};
  constexpr int64_t kAll = 27;
  const at::Tensor ids = (at::arange(kAll, at::kLong) * 7 + 3).remainder(30);
  const at::Tensor targets = (at::arange(kAll, at::kLong) * 11 + 5).remainder(30);
  for (const auto& [type, within] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-5}}) {
    for (const int64_t shared : {0, 10}) {
      const LmConfig config = with_experts(shared);
      TransformerLm whole = model_of(config, type);
      int64_t row = 0;
      for (const auto& of : lengths) {  // the mean over micro-batches by tokens
        int64_t rows = 0;
        for (const int64_t length : of) rows += length;
        const at::Tensor loss =
            whole->loss(ids.narrow(0, row, rows), targets.narrow(0, row, rows), at::tensor(of));
        (loss * (static_cast<double>(rows) / kAll)).backward();
        row += rows;
      }
      std::map<std::string, at::Tensor> truth;
      for (const auto& item : whole->named_parameters()) truth[item.key()] = item.value().grad();
      for (const char* name : {"1f1b", "zb-h1"}) {
        for (const int stages : {1, 2, 3}) {
          size_t compared = 0;
          std::mutex mutex;
          testing::run_threads(stages, [&](Communicator& comm) {
            at::set_num_threads(1);
            TransformerLm lm = model_of(config, type);
            const PipelineSchedule schedule =
                make_schedule(name, {stages, static_cast<int>(lengths.size()), 1});
            LmChunks chunks(lm, cut_by_costs(std::vector<double>(7, 1.0), schedule.all_chunks()));
            Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()), {});
            PipelineBatch batch{
                .rows = chunks.begin(lengths),
                .input = [&](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
                .loss =
                    [&](const at::Tensor& logits, const MicroBatch& mb) {
                      return next_token_loss(logits, targets.narrow(0, mb.first_row, mb.rows)) *
                             (static_cast<double>(mb.rows) / kAll);
                    }};
            pipeline.step(batch);
            const std::lock_guard lock(mutex);
            for (const std::string& one : chunks.parameters_of(schedule, comm.rank())) {
              const at::Tensor gradient = lm->named_parameters()[one].grad();
              ASSERT_TRUE(gradient.defined()) << one;
              EXPECT_LT((gradient - truth.at(one)).abs().max().item<double>(), within)
                  << name << " " << stages << " " << one;
              ++compared;
            }
          });
          EXPECT_EQ(compared, truth.size());
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::lm_experts_pipeline_test
