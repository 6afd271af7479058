// What bench/model_parallel.py measures of ours: two ranks that take turns at steps (forward and backward) of a
// Llama-shaped model, each rank with one thread:
//
//   lockstep run --nproc 2 build/release/bin/bench/model_parallel GO BACK
//
// GO and BACK are FIFOs. Rank 0 reads lines "WHAT STEPS" from GO and answers each on BACK with the seconds a step
// that the slower rank took, and for a pipeline, of its last step, the bubble that the formula gives, and the seconds
// that the schedule takes with the mean times of its actions, and took. WHAT:
//   pipeline-one    all micro-batches one after the other on rank 0; rank 1 waits
//   pipeline-both   the same on both ranks, each for itself: what the machine allows
//   1f1b, zb-h1     the same by two stages
//   tensor-one      one batch on rank 0; rank 1 waits
//   tensor-both     the same on both ranks, each for itself
//   tensor          the same by two parts
#include <ATen/Parallel.h>
#include <lockstep/comm/init.h>
#include <lockstep/parallel/pipeline/lm_chunks.h>
#include <lockstep/plan/pipeline_cut.h>
#include <lockstep/shard/tensor_parallel_lm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0 {
namespace {

constexpr int kMicroBatches = 8;
constexpr int64_t kTokens = 128;        // of a micro-batch, one sequence
constexpr int64_t kTensorTokens = 256;  // of the other's batch
// The head costs what a layer does: four layers are half of the work, and so are three with it.
const std::vector<int> kCut{5, 5};

// As model_parallel.py has them.
LmConfig pipeline_model() {
  LmConfig config;
  config.vocab_size = 7168;
  config.hidden_size = 512;
  config.intermediate_size = 1376;
  config.num_hidden_layers = 7;
  config.num_attention_heads = config.num_key_value_heads = 8;
  config.max_position_embeddings = kTokens;
  config.tie_word_embeddings = false;
  return config;
}
LmConfig tensor_model() {
  LmConfig config;
  config.vocab_size = 4096;
  config.hidden_size = 1024;
  config.intermediate_size = 2816;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 16;
  config.max_position_embeddings = kTensorTokens;
  config.tie_word_embeddings = false;
  return config;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  explicit Bench(Communicator comm) : comm_(std::move(comm)) {
    torch::manual_seed(1);
    lm_ = TransformerLm(pipeline_model());
    chunks_.emplace(lm_, kCut);
    whole_ = TransformerLm(tensor_model());
    part_ = tensor_parallel_lm(whole_, comm_);
    ids_ = at::randint(pipeline_model().vocab_size, {kMicroBatches * kTokens}, at::kLong);
    tensor_ids_ = at::randint(tensor_model().vocab_size, {1, kTensorTokens}, at::kLong);
    for (const char* name : {"1f1b", "zb-h1"}) {
      const auto schedule =
          make_schedule(name, {.stages = comm_.size(), .micro_batches = kMicroBatches});
      pipelines_.try_emplace(name, comm_, schedule, chunks_->chunks_of(schedule, comm_.rank()));
    }
  }

  // Of `steps` steps, the seconds of one.
  double run(const std::string& what, int steps) {
    comm_.barrier();
    const double start = now();
    for (int i = 0; i < steps; ++i) step(what);
    const at::Tensor spent = at::full({1}, (now() - start) / steps, at::kDouble);
    comm_.all_reduce(spent, ReduceOp::kMax);
    return spent.item<double>();
  }

  // What is answered behind the seconds; zeros for what is no pipeline. Known on rank 0.
  std::string expected(const std::string& what) {
    const auto found = pipelines_.find(what);
    if (found == pipelines_.end()) return "0 0 0";
    const auto measured = found->second.measured();
    if (!measured) return "";
    const PlannedPipeline& plan = measured->planned;
    const double bubble = expected_bubble(plan.schedule, plan.times).value_or(0);
    return std::to_string(bubble) + " " + std::to_string(plan.timing.makespan) + " " +
           std::to_string(measured->timing.makespan);
  }

 private:
  void step(const std::string& what) {
    if (what == "tensor") {
      part_->loss(tensor_ids_, tensor_ids_.roll(-1, 1)).backward();
    } else if (what == "tensor-one" || what == "tensor-both") {
      if (comm_.rank() == 0 || what == "tensor-both")
        whole_->loss(tensor_ids_, tensor_ids_.roll(-1, 1)).backward();
      comm_.barrier();
    } else if (what == "pipeline-one" || what == "pipeline-both") {
      if (comm_.rank() == 0 || what == "pipeline-both")
        for (int i = 0; i < kMicroBatches; ++i) one_micro_batch(i);
      comm_.barrier();
    } else {
      pipeline_step(pipelines_.at(what));
    }
  }

  static at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& ids) {
    return next_token_loss(logits, ids.roll(-1, 0)) / kMicroBatches;
  }
  void one_micro_batch(int index) {
    const at::Tensor ids = ids_.narrow(0, index * kTokens, kTokens);
    const LmPass pass = lm_->pass({kTokens}, {.first_row = index * kTokens});
    at::Tensor x = ids;
    for (const auto& unit : lm_->units()) x = unit->forward(x, pass);
    loss_of(x, ids).backward();
  }
  void pipeline_step(Pipeline& pipeline) {
    pipeline.step(
        {.rows = chunks_->begin(std::vector<std::vector<int64_t>>(kMicroBatches, {kTokens})),
         .input = [&](const MicroBatch& mb) { return ids_.narrow(0, mb.first_row, mb.rows); },
         .loss =
             [&](const at::Tensor& logits, const MicroBatch& mb) {
               return loss_of(logits, ids_.narrow(0, mb.first_row, mb.rows));
             }});
  }

  Communicator comm_;
  TransformerLm lm_{nullptr}, whole_{nullptr}, part_{nullptr};
  at::Tensor ids_, tensor_ids_;
  std::optional<LmChunks> chunks_;
  std::map<std::string, Pipeline> pipelines_;
};

const std::vector<std::string> kNames{"pipeline-one", "pipeline-both", "1f1b",  "zb-h1",
                                      "tensor-one",   "tensor-both",   "tensor"};

// Rank 0 sleeps in a read between turns, the others in a broadcast.
void take_turns(Communicator& comm, const char* go, const char* back) {
  at::set_num_threads(1);
  Bench bench(comm);
  std::ifstream turns;
  std::ofstream answers;
  if (comm.rank() == 0) {
    turns.open(go);
    answers.open(back);
  }
  for (;;) {
    std::string what;
    int steps = 0;
    const at::Tensor turn = at::zeros({2}, at::kLong);
    if (comm.rank() == 0 && turns >> what >> steps) {
      turn[0] =
          static_cast<int64_t>(std::find(kNames.begin(), kNames.end(), what) - kNames.begin());
      turn[1] = steps;
    }
    comm.broadcast(turn, 0);
    steps = turn[1].item<int>();
    if (steps == 0) return;
    what = kNames.at(static_cast<size_t>(turn[0].item<int64_t>()));
    const double seconds = bench.run(what, steps);
    const std::string expected = bench.expected(what);
    if (comm.rank() == 0) answers << seconds << ' ' << expected << std::endl;
  }
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: lockstep run --nproc 2 model_parallel GO BACK\n", stderr);
    return 2;
  }
  try {
    lockstep::Communicator comm = lockstep::init();
    lockstep::take_turns(comm, argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_parallel: %s\n", error.what());
    return 1;
  }
}
