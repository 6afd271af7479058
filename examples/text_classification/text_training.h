// What the nine programs of tutorial 003 share: options, data, model, and a Run that prints the
// tutorial's lines, evaluates and keeps the checkpoint. What differs between the methods is in the
// programs.
#pragma once

#include <lockstep/amp/autocast.h>
#include <lockstep/comm/communicator.h>
#include <lockstep/comm/init.h>
#include <lockstep/data/batch_shards.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>
#include <lockstep/model/bert.h>
#include <lockstep/optim/adam.h>
#include <lockstep/optim/decay_groups.h>
#include <lockstep/optim/learning_rate.h>
#include <lockstep/recipes/text_data.h>
#include <lockstep/report/progress_bar.h>
#include <lockstep/report/run_result.h>
#include <lockstep/train/evaluation.h>
#include <lockstep/train/run_state.h>
#include <torch/nn/functional/loss.h>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace text {

// How to train. Options of the command line; the recipe decides those that are not given.
struct Settings {
  std::string method;  // the program's name
  std::string data, vocab, model = "mini", output, json, config;
  std::string recipe = "default";  // "default": for a model drawn at random; "tutorial"
  std::string amp;                 // "": as the method has it; "bfloat16", "float16"
  int64_t nproc = 2;               // replicas or ranks that the program makes itself
  int64_t local_rank = 0;          // as a launcher passes it; unused
  int64_t seed = 123;
  int64_t max_steps = 0;  // 0: no limit
  int64_t eval_step = 0;  // 0: as the recipe has it
  int64_t epochs = 0, batch_size = 0, max_length = 0;
  std::string padding;
  bool remove_spaces = false;  // of the texts: for Chinese whose words are cut by spaces
  double lr = 0;
  // Of the recipe alone.
  double weight_decay = 0.01, warmup_ratio = 0;
  bool linear_decay = false;
  std::chrono::system_clock::time_point started;  // of this process

  torch::optim::AdamWOptions adamw() const {
    return torch::optim::AdamWOptions(lr).weight_decay(weight_decay);
  }
  // The rate of a step (from 0) of `total`.
  double rate(int64_t step, int64_t total) const;
};

// Reads the command line, tries the output (on the first rank alone), runs `program` and gives
// main()'s exit code: 0; 2 for bad input, 1 for a failure, after one line on stderr.
int run_program(const char* method, int argc, char** argv,
                const std::function<void(const Settings&)>& program);

// Joins the job, with the tutorial's two lines a process.
lockstep::Communicator join_job();

// The texts as token ids, and what is needed to read others in the same way.
using Texts = lockstep::TextData;
Texts load_texts(const Settings& settings, int64_t ranks);

// Drawn from the seed, the same on every rank, or of a directory; on the rank's device. What is
// random later differs from rank to rank.
lockstep::BertClassifier make_model(const Settings& settings, const Texts& texts,
                                    const lockstep::Communicator& comm);

// Weight decay but for biases and norms.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(lockstep::BertClassifier& model,
                                                                const Settings& settings);

// Over all ranks, every text once. Collective.
lockstep::Evaluation evaluate(lockstep::BertClassifier& model, const Texts& texts,
                              lockstep::Communicator& comm,
                              const std::optional<lockstep::amp::AutocastSettings>& autocast = {});

// Of the method `trainer`, in its output: what the Trainer itself leaves.
inline constexpr const char* kTrainerFolder = "trainer";

// Where a step's time goes, in the order of lockstep::kStepParts.
enum Part { kData, kForward, kBackward, kWait, kOptimizer };

// A training run as it goes on.
class Run {
 public:
  // `ranks`: that train, `replicas` of them in this process. Batches: of a rank and epoch.
  Run(const Settings& settings, const Texts& texts, lockstep::Communicator comm, int64_t batches);

  int64_t total_steps() const { return total_; }
  bool finished() const { return step_ >= total_; }
  double rate() const { return settings_.rate(step_, total_); }

  // The first step starts now; what a former run left in the output is moved aside. To be called
  // once, by all ranks; rank 0 says so on stderr.
  void starts();
  // The step's parts: each call ends one. `waited`: seconds of a backward that were spent waiting
  // for others.
  void ends(Part part, double waited = 0);
  // Ends a step of this rank's loss and samples: the mean over the ranks is printed. Collective.
  void step(const at::Tensor& loss, int64_t samples);

  // Whether it is time to look at the dev set.
  bool evaluates() const;
  // Prints the evaluation, and keeps the model if it is the best. On all ranks.
  void dev(const lockstep::Evaluation& evaluation, const lockstep::BertClassifier& model);
  // The last evaluation if there was none, the report and the result file. On all ranks.
  void finish(lockstep::BertClassifier& model);
  // For a loop of another library: where a step's seconds went; the step, with this rank's loss and
  // samples. Collective.
  void spends(const std::array<double, lockstep::kStepParts.size()>& seconds);
  void count(double loss, int64_t samples);
  // What was done since the last part or step was not training.
  void pause();

  // The files of a checkpoint beside the parameters.
  lockstep::CheckpointFiles files(const lockstep::BertClassifier& model) const;
  lockstep::RunResult& result() { return result_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A step's mean loss and number of samples.
  struct OverRanks {
    double loss = 0;
    int64_t samples = 0;
  };

  // Ranks may have unequal batches. Collective.
  OverRanks over_ranks(double loss, int64_t samples);
  void count(const OverRanks& all);
  void show(double loss);
  void keep(const lockstep::Evaluation& evaluation, const lockstep::BertClassifier& model);

  Settings settings_;
  const Texts& texts_;
  lockstep::Communicator comm_;
  lockstep::RunResult result_;
  std::array<double, lockstep::kStepParts.size()> parts_{};
  std::optional<lockstep::ProgressBar> bar_;
  int64_t per_epoch_ = 0, total_ = 0, step_ = 0, eval_step_ = 0, evaluated_ = -1;
  double best_ = -1;
  double paused_ = 0;  // seconds of evaluations and checkpoints
  Clock::time_point start_, lap_;
};

// Forward, as every method calls it.
template <typename Model>
at::Tensor forward(Model& model, const lockstep::data::TextBatch& batch) {
  return model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
}

inline at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.to(at::kFloat), labels);
}

}  // namespace text
