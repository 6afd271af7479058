// A pipeline: a language model cut along its depth, a stage a rank; eight micro-batches go through by a
// zero-bubble schedule. Each rank draws, holds and optimizes its own part alone. Runs on 2 ranks of its own
// when started by hand.
//   pipeline [STEPS [SCHEDULE [FILE.json]]]
// FILE.json: what the last step took, beside FILE.json.svg, its picture; `lockstep plan --measured FILE.json` says more.
#include <lockstep/model/transformer_lm.h>
#include <lockstep/optim/adam.h>
#include <lockstep/parallel/pipeline/lm_chunks.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/pipeline_cut.h>
#include <lockstep/plan/pipeline_schedule.h>
#include <lockstep/report/pipeline_picture.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "on_ranks.h"
#include "usage.h"

namespace {

constexpr int kMicroBatches = 8;
constexpr int64_t kSequences = 4, kTokens = 16, kNumbers = 23;

lockstep::LmConfig small_model() {
  lockstep::LmConfig config;
  config.vocab_size = kNumbers;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.max_position_embeddings = kTokens;
  config.tie_word_embeddings = true;  // on the first stage and on the last, with one gradient
  return config;
}

// Sequences that count on in steps of their own, [sequences, tokens + 1].
at::Tensor counting(int64_t sequences) {
  const auto from = torch::randint(kNumbers, {sequences, 1}),
             by = torch::randint(1, 8, {sequences, 1});
  return (from + by * torch::arange(kTokens + 1)).remainder(kNumbers);
}

// What the last step took, planned above and measured below.
void write_timeline(lockstep::Pipeline& pipeline, const std::string& file) {
  const auto measured = pipeline.measured();  // all ranks; on rank 0
  if (!measured) return;
  std::ofstream(file) << lockstep::pipeline_json(*measured).dump(2) << "\n";
  std::ofstream(file + ".svg") << lockstep::pipeline_svg(*measured);
}

void example(lockstep::Communicator& comm, int steps, const std::string& name,
             const std::string& file) {
  using namespace lockstep;
  const auto schedule =
      make_schedule(name, {.stages = comm.size(), .micro_batches = kMicroBatches});
  torch::manual_seed(1);  // the same model and the same data on every rank
  TransformerLm lm(small_model(), LmOptions{.initial = InitialParameters::kNone});

  // Embeddings, four layers, a norm, the product with the vocabulary: what they cost, about.
  LmChunks chunks(lm,
                  cut_by_costs(std::vector<double>{1, 4, 4, 4, 4, 1, 1}, schedule.all_chunks()));
  std::vector<at::Tensor> own;
  const auto draw = lm->drawn_parts();
  for (const std::string& parameter : chunks.parameters_of(schedule, comm.rank())) {
    own.push_back(lm->named_parameters()[parameter]);
    draw(parameter, 0, own.back().detach().view(-1));
  }
  lm->to(comm.device());
  optim::FusedAdamW optimizer(own, torch::optim::AdamWOptions(3e-3));
  Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()),
                    {.ties = chunks.ties_of(schedule, comm.rank())});

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor texts = counting(kMicroBatches * kSequences).to(comm.device());
    const at::Tensor ids = texts.narrow(1, 0, kTokens).reshape(-1);
    const at::Tensor targets = texts.narrow(1, 1, kTokens).reshape(-1);
    const std::vector<std::vector<int64_t>> lengths(kMicroBatches,
                                                    {kTokens, kTokens, kTokens, kTokens});
    optimizer.zero_grad();
    last = pipeline.step(
        {.rows = chunks.begin(lengths),
         .input = [&](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
         .loss =
             [&](const at::Tensor& logits, const MicroBatch& mb) {
               return next_token_loss(logits, targets.narrow(0, mb.first_row, mb.rows)) /
                      kMicroBatches;
             }});
    optimizer.step();
    if (step == 0) first = last;
  }
  if (!file.empty()) write_timeline(pipeline, file);
  int64_t numel = 0;
  for (const at::Tensor& parameter : own) numel += parameter.numel();
  std::printf(
      "stage %d of %d by %s: loss %.2f to %.2f; has %lld parameters, holds %d activations\n",
      comm.rank(), comm.size(), name.c_str(), first, last, static_cast<long long>(numel),
      pipeline.most_held());
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "pipeline [STEPS [SCHEDULE [FILE.json]]]"))
    return *code;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 60;
  const std::string schedule = argc > 2 ? argv[2] : "zb-h1";
  const std::string file = argc > 3 ? argv[3] : "";
  return on_ranks(2, [&](lockstep::Communicator& comm) { example(comm, steps, schedule, file); });
}
