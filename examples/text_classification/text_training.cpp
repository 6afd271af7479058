#include "text_training.h"

#include <lockstep/checkpoint/on_root.h>
#include <lockstep/core/aside_file.h>
#include <lockstep/core/env.h>
#include <lockstep/core/errors.h>
#include <lockstep/core/log.h>
#include <lockstep/core/memory_use.h>
#include <lockstep/data/sentences.h>
#include <lockstep/report/classification_report.h>
#include <lockstep/report/table.h>
#include <lockstep/report/terminal.h>
#include <lockstep/train/run_folder.h>
#include <lockstep/train/text_evaluation.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace text {
namespace fs = std::filesystem;
using lockstep::write_all;
namespace {

lockstep::TextInput input_of(const Settings& s) {
  lockstep::TextInput input{.data = s.data,
                            .vocab = s.vocab,
                            .model = s.model,
                            .padding = s.padding,
                            .max_length = s.max_length,
                            .remove_spaces = s.remove_spaces};
  if (!input.data.empty()) return input;
  input.data = "data/sentences";
  lockstep::data::generate_sentences(input.data);  // the first rank to come makes it
  return input;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

lockstep::Communicator join_job() {
  const auto env = lockstep::process_env();
  std::string values;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"}) {
    if (!values.empty()) values += ", ";
    values += std::string("'") + name + "': '" + env(name).value_or("") + "'";
  }
  const std::string pid = "[" + std::to_string(::getpid()) + "] ";
  write_all(STDOUT_FILENO, pid + "Initializing process group with: {" + values + "}\n");
  lockstep::Communicator comm = lockstep::init();
  write_all(STDOUT_FILENO, pid + "rank = " + std::to_string(comm.rank()) + ", world_size = " +
                               std::to_string(comm.size()) + ", n = 1, device_ids = [" +
                               std::to_string(comm.local_rank()) + "] \n");
  return comm;
}

Texts load_texts(const Settings& s, int64_t ranks) {
  Texts texts = lockstep::load_text_data(input_of(s));
  if (texts.train.size() < ranks)
    throw lockstep::InvalidArgument("there are " + std::to_string(texts.train.size()) +
                                    " texts for " + std::to_string(ranks) + " ranks");
  return texts;
}

lockstep::BertClassifier make_model(const Settings& s, const Texts& texts,
                                    const lockstep::Communicator& comm) {
  torch::manual_seed(static_cast<uint64_t>(s.seed));
  lockstep::BertClassifier model = lockstep::make_text_model(input_of(s), texts);
  model->to(comm.device());
  torch::manual_seed(static_cast<uint64_t>(s.seed + comm.rank()));
  return model;
}

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(lockstep::BertClassifier& model,
                                                                const Settings& s) {
  return lockstep::optim::decay_groups(*model, s.adamw());
}

lockstep::Evaluation evaluate(lockstep::BertClassifier& model, const Texts& texts,
                              lockstep::Communicator& comm,
                              const std::optional<lockstep::amp::AutocastSettings>& autocast) {
  constexpr int64_t kBatch = 32;
  return lockstep::evaluate_texts(model, texts.dev, comm,
                                  {.batch_size = kBatch, .autocast = autocast});
}

Run::Run(const Settings& settings, const Texts& texts, lockstep::Communicator comm, int64_t batches)
    : settings_(settings), texts_(texts), comm_(std::move(comm)), per_epoch_(batches) {
  total_ = per_epoch_ * settings_.epochs;
  if (settings_.max_steps > 0) total_ = std::min(total_, settings_.max_steps);
  constexpr int64_t kTutorial = 100;  // on one device
  eval_step_ = settings_.eval_step;
  if (eval_step_ == 0)
    eval_step_ = settings_.recipe != "tutorial" ? per_epoch_
                 : comm_.size() == 1            ? kTutorial
                                                : kTutorial / 2;
  result_.method = settings_.method;
  result_.nproc = comm_.size();
  result_.model = settings_.model;
  result_.dtype = "float32";
  result_.padding = settings_.padding;
  result_.batch_size = settings_.batch_size;
  if (comm_.rank() == 0 && ::isatty(STDOUT_FILENO) == 0)
    bar_.emplace(lockstep::ProgressBarOptions{
        .terminal = lockstep::find_terminal(STDERR_FILENO, lockstep::process_env())});
}

void Run::ends(Part part, double waited) {
  const auto now = Clock::now();
  parts_[part] += std::chrono::duration<double>(now - lap_).count() - waited;
  parts_[kWait] += waited;
  lap_ = now;
}

void Run::spends(const std::array<double, lockstep::kStepParts.size()>& seconds) {
  for (size_t part = 0; part < parts_.size(); ++part) parts_[part] += seconds[part];
}

Run::OverRanks Run::over_ranks(double loss, int64_t samples) {
  at::Tensor means = at::tensor({loss, static_cast<double>(samples)}, at::kDouble);
  comm_.all_reduce(means, lockstep::ReduceOp::kAvg);
  return {means[0].item<double>(), std::llround(means[1].item<double>() * comm_.size())};
}

void Run::step(const at::Tensor& loss, int64_t samples) {
  const OverRanks all = over_ranks(loss.item<double>(), samples);
  ends(kWait);
  count(all);
}

void Run::count(double loss, int64_t samples) {
  count(over_ranks(loss, samples));
}

void Run::count(const OverRanks& all) {
  ++step_;
  lap_ = Clock::now();
  result_.samples += all.samples;
  result_.losses.push_back(all.loss);
  show(all.loss);
}

void Run::show(double loss) {
  if (comm_.rank() != 0) return;
  const int64_t epoch = (step_ - 1) / per_epoch_ + 1;
  write_all(STDOUT_FILENO, "【train】 epoch：" + std::to_string(epoch) + "/" +
                               std::to_string(settings_.epochs) + " step：" +
                               std::to_string(step_) + "/" + std::to_string(total_) + " loss：" +
                               fixed(loss, 6) + "\n");
  if (!bar_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count() - paused_;
  bar_->update(
      {.label = settings_.method,
       .done = step_,
       .total = total_,
       .loss = loss,
       .samples_per_s = static_cast<double>(result_.samples) / seconds,
       .seconds_left = seconds / static_cast<double>(step_) * static_cast<double>(total_ - step_)});
}

bool Run::evaluates() const {
  return step_ % eval_step_ == 0 || finished();
}

lockstep::CheckpointFiles Run::files(const lockstep::BertClassifier& model) const {
  return lockstep::text_checkpoint_files(model, texts_);
}

void Run::dev(const lockstep::Evaluation& evaluation, const lockstep::BertClassifier& model) {
  const bool best = evaluation.accuracy > best_;
  evaluated_ = step_;
  result_.evaluations.push_back(
      {.step = step_, .loss = evaluation.loss, .accuracy = evaluation.accuracy});
  if (comm_.rank() == 0) {
    write_all(STDOUT_FILENO, "【dev】 loss：" + fixed(evaluation.loss, 6) + " accuracy：" +
                                 fixed(evaluation.accuracy, 4) + "\n");
    if (best) keep(evaluation, model);
  }
  best_ = std::max(best_, evaluation.accuracy);
  comm_.barrier();
  pause();
}

void Run::keep(const lockstep::Evaluation& evaluation, const lockstep::BertClassifier& model) {
  write_all(STDOUT_FILENO, "【best accuracy】 " + fixed(evaluation.accuracy, 4) + "\n");
  const fs::path path = lockstep::RunFolder{settings_.output}.best();
  fs::create_directories(path.parent_path());
  save_model(*model, files(model), path);
  result_.checkpoint = path.string();
  result_.dev_loss = evaluation.loss;
  result_.dev_accuracy = evaluation.accuracy;
  result_.confusion = confusion_matrix(evaluation, texts_.labels);
}

void Run::starts() {
  lockstep::on_root(comm_, [this] {
    const auto moved = lockstep::move_former_run_aside(
        settings_.output, {lockstep::RunFolder{}.checkpoints().string(), kTrainerFolder});
    if (moved) write_all(STDERR_FILENO, settings_.method + ": " + *moved + "\n");
  });
  result_.startup_s =
      std::chrono::duration<double>(std::chrono::system_clock::now() - settings_.started).count();
  start_ = lap_ = Clock::now();
  if (comm_.rank() == 0)
    write_all(STDERR_FILENO,
              settings_.method + ": training starts, " + std::to_string(total_) + " steps\n");
}

void Run::pause() {
  const auto now = Clock::now();
  paused_ += std::chrono::duration<double>(now - lap_).count();
  lap_ = now;
}

void Run::finish(lockstep::BertClassifier& model) {
  if (evaluated_ != step_) dev(evaluate(model, texts_, comm_), model);
  result_.steps = step_;
  result_.epochs = static_cast<double>(step_) / static_cast<double>(per_epoch_);
  result_.seconds = std::chrono::duration<double>(lap_ - start_).count() - paused_;
  result_.samples_per_s = static_cast<double>(result_.samples) / result_.seconds;
  at::Tensor memory = at::full({1}, lockstep::peak_memory_mib(), at::kDouble);
  const at::Tensor all = comm_.all_gather(memory);
  for (int64_t r = 0; r < all.size(0); ++r)
    result_.peak_memory_mib.push_back(all[r].item<double>());
  if (comm_.rank() != 0) return;
  double parts = 0;
  for (const double part : parts_) parts += part;
  if (parts > 0) result_.parts_s = parts_;
  const auto report = lockstep::classification_report(*result_.confusion);
  result_.macro_f1 = report.macro.f1;
  result_.weighted_f1 = report.weighted.f1;
  if (bar_) {
    bar_->finish(settings_.method + ": " + std::to_string(step_) + " steps, " +
                 lockstep::duration_text(result_.seconds) + ", dev accuracy " +
                 lockstep::percent(*result_.dev_accuracy, 2));
  }
  write_all(STDOUT_FILENO, to_text(report) + "耗时：" + fixed(result_.seconds / 60, 4) + "分钟\n");
  write_all(STDOUT_FILENO, "checkpoint: " + result_.checkpoint + "\n");
  if (!settings_.json.empty())
    lockstep::write_file_aside(settings_.json, to_json(result_).dump(2) + "\n");
}

}  // namespace text
