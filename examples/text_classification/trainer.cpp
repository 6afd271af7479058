// Tutorial 003, method 9: Trainer. Data sets, a model and TrainingArguments; the loop is the
// trainer's.
//   lockstep run --nproc-per-node 2 trainer --data ... --vocab ...
#include <lockstep/train/trainer.h>

#include "text_training.h"

namespace {

// Hands the trainer's steps and evaluations to the Run that the nine programs share.
class ToRun final : public lockstep::TrainCallback {
 public:
  explicit ToRun(text::Run& run) : run_(run) {}
  void on_step(const lockstep::TrainerState&, const lockstep::StepResult& result) override {
    const lockstep::StepTimes& times = result.times;
    run_.spends({times.data, times.forward, times.backward, times.waiting, times.optimizer});
    run_.count(result.loss, result.samples);
  }
  void on_evaluation(const lockstep::TrainerState& state, const lockstep::Evaluation& evaluation,
                     bool, lockstep::TrainControl&) override {
    run_.result().evaluations.push_back(
        {.step = state.step, .loss = evaluation.loss, .accuracy = evaluation.accuracy});
    run_.pause();
  }

 private:
  text::Run& run_;
};

lockstep::Metrics compute_metrics(const lockstep::EvalPrediction& prediction) {
  return {{"accuracy", lockstep::count_classes(prediction).accuracy}};
}

lockstep::TrainingArguments arguments_of(const text::Settings& settings) {
  lockstep::TrainingArguments args;
  args.output_dir = settings.output + "/" + text::kTrainerFolder;
  args.per_device_train_batch_size = args.per_device_eval_batch_size = settings.batch_size;
  args.num_train_epochs = static_cast<double>(settings.epochs);
  if (settings.max_steps > 0) args.max_steps = settings.max_steps;
  args.learning_rate = settings.lr;
  args.weight_decay = settings.weight_decay;
  args.lr_scheduler_type = settings.linear_decay ? "linear" : "constant";
  args.warmup_ratio = settings.warmup_ratio;
  args.max_grad_norm = 0;  // no clipping, as in the other methods
  args.bf16 = settings.amp == "bfloat16";
  args.fp16 = settings.amp == "float16";
  args.seed = settings.seed;
  args.dataloader_num_workers = 1;
  args.logging_steps = args.save_steps = 50;
  args.eval_strategy = args.save_strategy = "epoch";
  args.save_total_limit = 1;
  args.load_best_model_at_end = true;
  args.metric_for_best_model = "accuracy";
  args.disable_tqdm = true;  // the Run has a bar
  return args;
}

}  // namespace

int main(int argc, char** argv) {
  return text::run_program("trainer", argc, argv, [](const text::Settings& settings) {
    lockstep::Communicator comm = text::join_job();
    const text::Texts texts = text::load_texts(settings, comm.size());
    lockstep::BertClassifier model = text::make_model(settings, texts, comm);
    const int64_t mine = lockstep::data::DistributedSampler(texts.train.size(), comm).size();
    text::Run run(settings, texts, comm,
                  lockstep::data::batch_count({.batch_size = settings.batch_size}, mine));
    if (!settings.amp.empty()) run.result().dtype = settings.amp;
    lockstep::Trainer<lockstep::BertClassifier, lockstep::data::TokenizedTexts> trainer(
        {.model = model,
         .comm = comm,
         .args = arguments_of(settings),
         .train_dataset = &texts.train,
         .eval_dataset = &texts.dev,
         .compute_metrics = compute_metrics,
         .callbacks = {std::make_shared<ToRun>(run)},
         .saved = run.files(model)});
    run.starts();
    trainer.train();
    run.finish(model);
  });
}
